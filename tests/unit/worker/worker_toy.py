"""A toy model whose next logits are a known function of all tokens before, found through the KV cache; and a
naive host model of the whole step to compare with."""

from types import SimpleNamespace

import numpy as np
import torch

from octavo.base.config import Resolved
from octavo.base.plan import AddedRow, NewBlocks, StepPlan
from octavo.base.specs import KVGroup, KVLayout, KVSpec
from octavo.base.wire import Sampling
from octavo.kernels.ref.describe import describe
from octavo.kernels.ref.narrow import narrow
from octavo.kernels.ref.penalize import penalize
from octavo.kernels.ref.sample import draw, forbid, write_tokens
from octavo.kernels.ref.sample import greedy as likeliest
from octavo.platform.cpu import CpuPlatform
from octavo.worker.assemble import build_runner

OPS = SimpleNamespace(
    draw=draw,
    greedy=likeliest,
    forbid=forbid,
    narrow=narrow,
    describe=describe,
    penalize=penalize,
    write_tokens=write_tokens,
    ahead=None,
    tune=None,
)
STATES = 997
POISON = 13  # a context that holds this id gives NaN logits


def layout(groups=1, block_size=4, num_blocks=64):
    spec = KVSpec(num_kv_heads=1, head_dim=1)
    return KVLayout(tuple(KVGroup(spec, (index,)) for index in range(groups)), block_size, num_blocks, 4)


def resolved(max_rows=6, max_tokens=64, max_model_len=60, depth=2, block_size=4):
    return Resolved(
        device="cpu",
        dtype="float32",
        max_model_len=max_model_len,
        max_num_seqs=max_rows,
        max_num_batched_tokens=max_tokens,
        depth=depth,
        threads=1,
        load_format="dummy",
        block_size=block_size,
        notes=[],
    )


class ToyModel:
    """Keeps token ids in the cache; a token's hidden state is the weighted sum of its past, modulo STATES."""

    def __init__(self, vocab_size=50, seed=0):
        self.table = torch.randn(STATES, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3
        self.calls = 0
        self.fail_next = False

    def __call__(self, input_ids, positions, ctx):  # noqa: ARG002
        self.calls += 1
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("out of memory, for example\nsecond line")
        states = []
        for layer in range(len(ctx.kv)):
            meta, kv = ctx.attention(layer)
            block, offset = meta.slots // meta.block_size, meta.slots % meta.block_size
            kv[block, 0, 0, offset, 0] = input_ids.float()
            states.append(self._past(meta, kv))
        for other in states[1:]:
            assert torch.equal(states[0], other) or states[0].isnan().any()
        return states[0]

    def _past(self, meta, kv):
        hidden = []
        for row, (count, length) in enumerate(zip(meta.query_lens, meta.seq_lens_host)):
            place = torch.arange(length)
            block = meta.block_table[row, place // meta.block_size].long()
            past = kv[block, 0, 0, place % meta.block_size, 0]
            state = (past * (place + 1)).cumsum(0) % STATES
            state[(past == POISON).cumsum(0) > 0] = float("nan")
            hidden.append(state[length - count :])
        return torch.cat(hidden)[:, None] if hidden else torch.zeros(0, 1)

    def logits(self, hidden):
        bad = hidden[:, 0].isnan()
        out = self.table[hidden[:, 0].nan_to_num(0).long()].clone()
        out[bad] = float("nan")
        return out

    def likeliest(self, hidden):
        return likeliest(self.logits(hidden))

    def naive(self, tokens):
        """Logits after `tokens` on the host."""
        state = sum((place + 1) * token for place, token in enumerate(tokens)) % STATES
        return self.table[state]


def greedy(**changes):
    return Sampling(**{"seed": 1, "max_tokens": 8, "temperature": 0.0, **changes})


def make_runner(model, settings=None, kv=None):
    settings, kv = settings or resolved(), kv or layout()
    return build_runner(CpuPlatform(), OPS, model, kv, settings, model.table.shape[1])


class Driver:
    """Gives every row its own blocks up front and writes plans by hand, up to `depth` of them in flight."""

    def __init__(self, runner, groups=1, block_size=4, per_row=16):
        self.runner, self.groups, self.block_size, self.per_row = runner, groups, block_size, per_row
        self.step = 0

    def blocks(self, row, count):
        return [
            [1 + (row * self.groups + group) * self.per_row + index for index in range(count)]
            for group in range(self.groups)
        ]

    def added(self, row, tokens, num_prompt=None, sampling=None, computed=0):
        tokens = list(tokens)
        return AddedRow(
            row=row,
            id=f"r{row}",
            tokens=tokens,
            num_prompt=num_prompt or len(tokens),
            num_computed=computed,
            sampling=sampling or greedy(),
            blocks=self.blocks(row, self.per_row),
        )

    def launch(self, added=(), rows=(), num=(), starts=(), sampled=(), dropped=(), new_blocks=()):
        self.step += 1
        plan = StepPlan(
            self.step, list(dropped), list(added), list(new_blocks), list(rows), list(num), list(starts), list(sampled)
        )
        self.runner.forward(plan)
        return self.runner.sample({})

    def generate(self, prompts, samplings, count, together=True):
        """`count` tokens for each prompt, all rows in one batch or each alone."""
        results = [[] for _ in prompts]
        batches = [list(range(len(prompts)))] if together else [[row] for row in range(len(prompts))]
        for rows in batches:
            added = [self.added(row, prompts[row], sampling=samplings[row]) for row in rows]
            lengths = [len(prompts[row]) for row in rows]
            starts = [0] * len(rows)
            num = lengths
            for _ in range(count):
                out = self.launch(added, rows, num, starts, range(len(rows))).result()
                for row, token in zip(rows, out.tokens):
                    results[row].append(token)
                starts = [a + b for a, b in zip(starts, num)]
                num, added = [1] * len(rows), []
        return results


def random_prompt(rng, low=1, high=12, vocab=50):
    tokens = rng.integers(0, vocab, size=int(rng.integers(low, high + 1)))
    return np.where(tokens == POISON, POISON + 1, tokens).tolist()


__all__ = ["OPS", "Driver", "NewBlocks", "ToyModel", "greedy", "layout", "make_runner", "random_prompt", "resolved"]
