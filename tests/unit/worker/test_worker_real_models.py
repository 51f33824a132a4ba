"""Worker and scheduler together, over tiny random checkpoints: the greedy tokens of transformers, whatever happens."""

import os

import pytest
import torch

transformers = pytest.importorskip("transformers")

from octavo.base.config import DeviceConfig, EngineConfig, ModelConfig, Resolved  # noqa: E402
from octavo.base.scores import read  # noqa: E402
from octavo.base.specs import KVLayout, group_layers  # noqa: E402
from octavo.base.wire import EngineRequest, Sampling  # noqa: E402
from octavo.sched.limits import Limits  # noqa: E402
from octavo.sched.scheduler import Scheduler  # noqa: E402
from octavo.weights.facts import read_model  # noqa: E402
from octavo.worker.worker import Worker  # noqa: E402

VOCAB = 96
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES,
        head_dim=8,
        sliding_window=8,
        query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    ),
}
LENGTH = 24


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def checkpoint(request, tmp_path_factory):
    """Folder, transformers' model, prompts and its greedy continuations."""
    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp(request.param)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
    model.save_pretrained(folder)
    generator = torch.Generator().manual_seed(1)
    prompts, expected = [], []
    for length in (3, 17, 30, 9, 21):
        tokens = None
        while tokens is None:
            prompt = torch.randint(3, VOCAB, (length,), generator=generator).tolist()
            if len(prompts) == 4:
                prompt[:16] = prompts[2][:16]  # a prefix in common
            tokens = _greedy(model, prompt, LENGTH)
        prompts.append(prompt)
        expected.append(tokens)
    return folder, model, prompts, expected


def _greedy(model, prompt, count):
    """None when two tokens are so nearly equal that rounding could choose."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
            if best.values[0] - best.values[1] < 1e-3:
                return None
            tokens.append(int(best.indices[0]))
    return tokens[len(prompt) :]


class Engine:
    """The smallest engine loop: plan, forward, sample, update, up to `depth` steps ahead."""

    def __init__(self, folder, *, num_blocks=200, max_tokens=64, rows=8, depth=1, block_size=4, backend="auto"):
        files = read_model(ModelConfig(model=str(folder)))
        resolved = Resolved(
            device="cpu",
            dtype="float32",
            max_model_len=96,
            max_num_seqs=rows,
            max_num_batched_tokens=max_tokens,
            depth=depth,
            threads=1,
            load_format=files.format,
            block_size=block_size,
            notes=[],
        )
        self.worker = Worker(files, resolved, EngineConfig(device=DeviceConfig(attention_backend=backend)))
        self.worker.load()
        assert self.worker.kv_capacity() > 0
        layout = KVLayout(group_layers(files.arch.kv_specs()), block_size, num_blocks, 4)
        self.worker.start(layout)
        limits = Limits(max_model_len=96, max_num_seqs=rows, max_num_batched_tokens=max_tokens)
        self.scheduler = Scheduler(layout, limits)
        self.depth = depth

    def run(self, prompts, samplings):
        outputs = {}
        for index, (prompt, sampling) in enumerate(zip(prompts, samplings)):
            self.scheduler.add(EngineRequest(f"{index}", prompt, sampling))
        flight = []
        for _ in range(2000):
            plan = self.scheduler.plan() if len(flight) < self.depth else None
            if plan is not None:
                self.worker.forward(plan)
                flight.append((plan, self.worker.sample({})))
            if flight and (plan is None or len(flight) == self.depth):
                done, pending = flight.pop(0)
                for output in self.scheduler.update(done, pending.result()).each():
                    outputs.setdefault(output.id, []).append(output)
            if not flight and not self.scheduler.has_work:
                return outputs
        raise AssertionError("the engine did not finish")


def tokens_of(outputs, index):
    return [token for output in outputs[str(index)] for token in output.tokens]


def plain(**changes):
    return Sampling(**{"seed": 5, "max_tokens": LENGTH, "temperature": 0.0, **changes})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"depth": 2},
        {"max_tokens": 8, "rows": 3},  # chunks, and more requests than rows
        {"max_tokens": 8, "rows": 5, "depth": 2},
        {"num_blocks": 40, "depth": 2},  # preemption
        {"block_size": 16, "num_blocks": 64},
    ],
    ids=str,
)
def test_greedy_tokens_are_those_of_transformers(checkpoint, settings):
    folder, _, prompts, expected = checkpoint
    outputs = Engine(folder, **settings).run(prompts, [plain()] * len(prompts))
    assert [tokens_of(outputs, index) for index in range(len(prompts))] == expected


def test_captured_steps_change_nothing(checkpoint, monkeypatch):
    """The whole road of captured steps, interpreted (so few and short ones): rooms, padding, staging, plans ahead."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels run on a CPU only interpreted")
    monkeypatch.setattr("octavo.worker.rooms.FRESH_TOKENS", 16)
    monkeypatch.setattr("octavo.kernels.triton.attention.suits", lambda *_: True)
    folder, _, prompts, _ = checkpoint
    engine = Engine(folder, backend="triton", max_tokens=16, rows=2, depth=2)
    while engine.worker.prepare():
        pass
    launcher = engine.worker._runner._launcher
    ready = len(launcher._steps)
    assert ready == len(launcher._rooms) == 4
    few = [prompt[:11] for prompt in prompts[:3]]
    samplings = [plain(max_tokens=3), plain(max_tokens=4, temperature=0.8, seed=3), plain(max_tokens=2)]
    reference = Engine(folder).run(few, samplings)
    outputs = engine.run(few, samplings)
    assert [tokens_of(outputs, i) for i in range(len(few))] == [tokens_of(reference, i) for i in range(len(few))]
    assert len(launcher._steps) == ready


def test_preemption_and_prefix_hits_happen_and_change_nothing(checkpoint):
    folder, _, prompts, expected = checkpoint
    tight = Engine(folder, num_blocks=40, depth=2)
    tight.run(prompts, [plain()] * len(prompts))
    assert tight.scheduler.stats().preemptions > 0
    roomy = Engine(folder, num_blocks=400, depth=2)
    roomy.run(prompts, [plain()] * len(prompts))
    outputs = roomy.run(prompts, [plain()] * len(prompts))
    assert [tokens_of(outputs, index) for index in range(len(prompts))] == expected
    assert roomy.scheduler.stats().prefix_hits > 0


def test_sampled_tokens_do_not_depend_on_scheduling(checkpoint):
    folder, _, prompts, _ = checkpoint
    samplings = [
        plain(temperature=0.9, top_p=0.9),
        plain(temperature=1.1, top_k=20, repetition_penalty=1.2),
        plain(temperature=0.8, presence_penalty=0.6, frequency_penalty=0.3, min_tokens=4, stop_token_ids=(7, 8)),
        plain(),
        plain(temperature=1.0, min_p=0.02, bad_words=((11, 12), (13,)), seed=9),
    ]
    runs = [
        Engine(folder, **settings).run(prompts, samplings)
        for settings in ({}, {"depth": 2, "max_tokens": 8, "rows": 3}, {"num_blocks": 40, "depth": 2})
    ]
    tokens = [[tokens_of(outputs, index) for index in range(len(prompts))] for outputs in runs]
    assert tokens[0] == tokens[1] == tokens[2]


def test_logprobs_are_those_of_transformers(checkpoint):
    folder, model, prompts, expected = checkpoint
    outputs = Engine(folder, max_tokens=8, depth=2).run(prompts, [plain(logprobs=3, prompt_logprobs=2)] * len(prompts))
    for index, prompt in enumerate(prompts):
        tokens = prompt + expected[index]
        with torch.no_grad():
            truth = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        lines = [line for output in outputs[str(index)] for line in read(output.logprobs)]
        assert [line.token for line in lines] == expected[index]
        for place, line in enumerate(lines, start=len(prompt) - 1):
            assert line.logprob == pytest.approx(float(truth[place, line.token]), abs=1e-4)
            assert line.logprobs == pytest.approx(truth[place].topk(3).values.tolist(), abs=1e-4)
            assert line.rank == 1
        asked = [line for output in outputs[str(index)] for line in read(output.prompt_logprobs) if line]
        assert [line.token for line in asked] == prompt[1:]
        for place, line in enumerate(asked):
            assert line.logprob == pytest.approx(float(truth[place, line.token]), abs=1e-4)


def test_capacity_is_measured_by_the_largest_step(checkpoint, monkeypatch):
    """On a device that counts its memory, the costliest plan runs through model and sampler and leaves no trace."""
    folder, _, prompts, expected = checkpoint
    engine = Engine(folder, rows=5, max_tokens=32)
    worker = engine.worker
    monkeypatch.setattr(worker._platform, "counts_memory", True)
    monkeypatch.setattr(worker._platform, "memory", lambda: (1 << 33, 1 << 34))
    monkeypatch.setattr(worker._platform, "peak", lambda: 1 << 30)
    monkeypatch.setattr(worker, "_free_at_start", 1 << 34)
    share = engine.worker._config.cache.gpu_memory_utilization
    assert worker.kv_capacity() == int(share * (1 << 34)) - (1 << 33) - (1 << 30)
    outputs = engine.run(prompts, [plain()] * len(prompts))
    assert [tokens_of(outputs, index) for index in range(len(prompts))] == expected
