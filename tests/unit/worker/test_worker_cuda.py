"""The same steps on a GPU: equal tokens, and no wait for the device inside a step."""

import numpy as np
import pytest
import torch
from test_worker_sampler import RULES, random_sampling
from worker_reference import Bench
from worker_toy import POISON, STATES, Driver, ToyModel, greedy, layout, random_prompt, resolved

from octavo.base.wire import Sampling
from octavo.kernels.ref.sample import greedy as likeliest
from octavo.worker.assemble import build_runner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class GpuToy(ToyModel):
    """The toy with its table on the GPU; its own host loop is made of enqueued work only."""

    def __init__(self):
        super().__init__()
        self.table = self.table.cuda()

    def _past(self, meta, kv):
        hidden = []
        for row, (count, length) in enumerate(zip(meta.query_lens, meta.seq_lens_host)):
            place = torch.arange(length, device="cuda")
            block = meta.block_table[row].index_select(0, place // meta.block_size).long()
            flat = block * meta.block_size + place % meta.block_size
            past = kv[:, 0, 0, :, 0].reshape(-1).index_select(0, flat)
            state = (past * (place + 1)).cumsum(0) % STATES
            state = torch.where((past == POISON).cumsum(0) > 0, float("nan"), state)
            hidden.append(state[length - count :])
        return torch.cat(hidden)[:, None]

    def logits(self, hidden):
        known = self.table.index_select(0, hidden[:, 0].nan_to_num(0).long())
        return torch.where(hidden.isnan(), float("nan"), known)

    def likeliest(self, hidden):
        return likeliest(self.logits(hidden))


def generate(runner, prompts, samplings, count):
    """One step ahead all the way; the device is waited for at the end only."""
    driver = Driver(runner)
    rows = list(range(len(prompts)))
    added = [driver.added(row, prompts[row], sampling=samplings[row]) for row in rows]
    num, starts = [len(prompt) for prompt in prompts], [0] * len(rows)
    pending = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(count):
            pending.append(driver.launch(added, rows, num, starts, rows))
            starts, num, added = [a + b for a, b in zip(starts, num)], [1] * len(rows), []
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [[result.tokens[row][0] for result in (each.result() for each in pending)] for row in rows]


def test_gpu_steps_equal_cpu_steps_and_never_wait():
    from worker_toy import OPS, make_runner

    from octavo.platform.cuda import CudaPlatform

    rng = np.random.default_rng(0)
    samplings = [greedy()] + [
        Sampling(**{"seed": 5, "max_tokens": 9, **changes, "logprobs": 2, "prompt_logprobs": 1})
        for changes in RULES.values()
    ]
    prompts = [random_prompt(rng) for _ in samplings]
    settings, kv = resolved(max_rows=32, max_tokens=512), layout(num_blocks=600)
    runner = build_runner(CudaPlatform(), OPS, GpuToy(), kv, settings, 50)
    warm = generate(runner, prompts, samplings, 2)
    on_gpu = generate(runner, prompts, samplings, 8)
    on_cpu = Driver(make_runner(ToyModel(), settings, kv)).generate(prompts, samplings, 8)
    assert on_gpu == on_cpu
    assert [line[:2] for line in on_gpu] == warm


@pytest.mark.parametrize("vocab", [64, 5000])
def test_rules_on_the_gpu_equal_those_on_the_cpu(vocab):
    from octavo.platform.cuda import CudaPlatform

    rng = np.random.default_rng(vocab)
    samplings = [random_sampling(rng, vocab) for _ in range(24)]
    lines = [rng.integers(0, vocab, 20).tolist() for _ in samplings]
    logits = rng.normal(0, 2, (24, vocab)).astype(np.float32)
    tokens, after = Bench(vocab, 24).draw(logits, lines, [9] * 24, samplings)
    gpu_tokens, gpu_after = Bench(vocab, 24, CudaPlatform()).draw(logits, lines, [9] * 24, samplings)
    np.testing.assert_allclose(gpu_after, after, atol=1e-4)
    assert (gpu_tokens == tokens).mean() > 0.95
