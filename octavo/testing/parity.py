"""A decoder run by hand on a paged cache, to compare it with transformers token by token.

`PagedModel` is the least that can drive a model: sequences, a block allocator that hands out blocks in a shuffled
order, and steps of any mix of chunks. The cache starts full of NaN, freed blocks are filled with NaN again, and every
step ends with a few padding tokens in block 0; so a read of a slot that was never written shows at once.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from octavo.base.plan import PAD_BLOCK
from octavo.base.specs import group_layers
from octavo.kernels.context import AttentionMeta, ForwardContext
from octavo.kernels.ops import Ops, select
from octavo.models.decoder import Decoder, build
from octavo.models.registry import read_architecture
from octavo.testing.tiny import TinyModel
from octavo.weights.load import load_weights

TOLERANCE = 1e-4


@dataclass
class Sequence:
    """One request: its tokens, how many are computed, and a block table for each KV group."""

    tokens: list[int]
    num_prompt: int
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)


@dataclass
class Chunk:
    """A step's share of one sequence."""

    sequence: Sequence
    count: int


class PagedModel:
    """A model with its cache."""

    def __init__(
        self,
        tiny: TinyModel,
        *,
        block_size: int = 4,
        num_blocks: int = 160,
        padding: int = 2,
        ops: Ops | None = None,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device = torch.device(device)
        self.arch = read_architecture(tiny.config)
        self.decoder: Decoder = build(self.arch, ops or select(self.device), dtype, self.device)
        load_weights(self.decoder, tiny.checkpoint)
        self.block_size = block_size
        self.padding = padding
        self.groups = group_layers(self.arch.kv_specs())
        spec = self.groups[0].spec
        slots = max(len(group.layers) for group in self.groups)
        shape = (num_blocks, slots, 2, spec.num_kv_heads, block_size, spec.head_dim)
        self.pool = torch.full(shape, float("nan"), dtype=dtype, device=self.device)
        self.free = list(range(1, num_blocks))
        random.Random(0).shuffle(self.free)
        self.owners: Counter[int] = Counter()
        places = {layer: (g, slot) for g, group in enumerate(self.groups) for slot, layer in enumerate(group.layers)}
        self.layer_group = [places[layer][0] for layer in range(len(places))]
        self.views = [self.pool[:, places[layer][1]] for layer in range(len(places))]

    def sequence(self, tokens: list[int]) -> Sequence:
        """A new request with nothing computed."""
        return Sequence(list(tokens), len(tokens), 0, [[] for _ in self.groups])

    def share(self, donor: Sequence, tokens: list[int]) -> Sequence:
        """A new request that starts with the donor's full blocks, as after a prefix hit."""
        new = self.sequence(tokens)
        if self.arch.rope_salt(donor.num_prompt) != self.arch.rope_salt(len(tokens)):
            return new
        same = 0
        while same < min(donor.computed, len(tokens) - 1) and donor.tokens[same] == tokens[same]:
            same += 1
        blocks = same // self.block_size
        new.computed = blocks * self.block_size
        new.tables = [table[:blocks] for table in donor.tables]
        self.owners.update(block for table in new.tables for block in table)
        return new

    def step(self, chunks: list[Chunk]) -> list[Tensor]:
        """Compute some tokens of some sequences; log-probabilities ``[count, V]`` for each."""
        for chunk in chunks:
            self._reserve(chunk)
        input_ids = [t for c in chunks for t in c.sequence.tokens[c.sequence.computed : c.sequence.computed + c.count]]
        positions = [p for c in chunks for p in range(c.sequence.computed, c.sequence.computed + c.count)]
        prompt_lens = [c.sequence.num_prompt for c in chunks for _ in range(c.count)]
        pad = [0] * self.padding
        metas = [self._meta(chunks, positions, group) for group in range(len(self.groups))]
        lens = self._tensor(prompt_lens + pad) if self.arch.rope_switch is not None else None
        ctx = ForwardContext(metas, self.layer_group, self.views, lens)
        with torch.no_grad():
            hidden = self.decoder(self._tensor(input_ids + pad), self._tensor(positions + pad), ctx)
            logits = self.decoder.logits(hidden[: len(input_ids)]).log_softmax(-1).cpu()
        for chunk in chunks:
            chunk.sequence.computed += chunk.count
            self._free_behind_window(chunk.sequence)
        return list(torch.split(logits, [chunk.count for chunk in chunks]))

    def prefill(self, sequence: Sequence, chunk: int | None = None) -> Tensor:
        """Compute all that is known, in chunks; log-probabilities ``[tokens, V]`` of what was computed."""
        parts = []
        while sequence.computed < len(sequence.tokens):
            left = len(sequence.tokens) - sequence.computed
            parts += self.step([Chunk(sequence, min(chunk or left, left))])
        return torch.cat(parts)

    def generate(self, sequence: Sequence, count: int, chunk: int | None = None) -> tuple[list[int], Tensor]:
        """Greedy tokens and the log-probabilities ``[count, V]`` they were taken from."""
        rows = [self.prefill(sequence, chunk)[-1]]
        while True:
            sequence.tokens.append(int(rows[-1].argmax()))
            if len(rows) == count:
                return sequence.tokens[-count:], torch.stack(rows)
            rows.append(self.step([Chunk(sequence, 1)])[0][0])

    def drop(self, sequence: Sequence) -> None:
        """Give a sequence's blocks back; the next owner finds NaN in them."""
        for table in sequence.tables:
            for block in table:
                self._release(block)
            table.clear()
        sequence.computed = 0

    def _reserve(self, chunk: Chunk) -> None:
        needed = -(-(chunk.sequence.computed + chunk.count) // self.block_size)
        for table in chunk.sequence.tables:
            while len(table) < needed:
                table.append(self.free.pop())
                self.owners[table[-1]] = 1

    def _free_behind_window(self, sequence: Sequence) -> None:
        for group, table in zip(self.groups, sequence.tables):
            if group.spec.window is None:
                continue
            unseen = max(0, sequence.computed + 1 - group.spec.window) // self.block_size
            for index in range(min(unseen, len(table))):
                self._release(table[index])
                table[index] = PAD_BLOCK

    def _release(self, block: int) -> None:
        self.owners[block] -= 1
        if block != PAD_BLOCK and self.owners[block] == 0:
            self.pool[block] = float("nan") if self.pool.is_floating_point() else 77
            self.free.insert(0, block)

    def _meta(self, chunks: list[Chunk], positions: list[int], group: int) -> AttentionMeta:
        tables = [chunk.sequence.tables[group] for chunk in chunks]
        width = max(len(table) for table in tables) + 1
        rows = [table + [PAD_BLOCK] * (width - len(table)) for table in tables]
        slots = []
        for chunk, table in zip(chunks, tables):
            for position in range(chunk.sequence.computed, chunk.sequence.computed + chunk.count):
                slots.append(table[position // self.block_size] * self.block_size + position % self.block_size)
        query_lens = [chunk.count for chunk in chunks]
        seq_lens = [chunk.sequence.computed + chunk.count for chunk in chunks]
        starts = [sum(query_lens[:row]) for row in range(len(chunks) + 1)]
        return AttentionMeta(
            block_table=self._tensor(rows, torch.int32),
            slots=self._tensor(slots + [0] * self.padding),
            query_start=self._tensor(starts, torch.int32),
            seq_lens=self._tensor(seq_lens, torch.int32),
            positions=self._tensor(positions + [0] * self.padding),
            block_size=self.block_size,
            num_rows=len(chunks),
            query_lens=query_lens,
            seq_lens_host=seq_lens,
        )

    def _tensor(self, values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def reference_logprobs(tiny: TinyModel, tokens: list[int]) -> Tensor:
    """transformers' log-probabilities ``[tokens, V]``, the whole text in one forward pass without a cache."""
    _forget_lengths(tiny)
    with torch.no_grad():
        logits = tiny.reference(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    logprobs: Tensor = logits.float().log_softmax(-1)
    return logprobs


def reference_generate(tiny: TinyModel, prompt: list[int], count: int) -> tuple[list[int], Tensor]:
    """transformers' greedy tokens and their log-probabilities ``[count, V]``, prompt at once, then one by one."""
    _forget_lengths(tiny)
    tokens, rows, past = list(prompt), [], None
    step = tokens
    with torch.no_grad():
        for _ in range(count):
            out = tiny.reference(input_ids=torch.tensor([step]), past_key_values=past, use_cache=True)
            past = out.past_key_values
            rows.append(out.logits[0, -1].float().log_softmax(-1))
            step = [int(rows[-1].argmax())]
            tokens += step
    return tokens[-count:], torch.stack(rows)


def _forget_lengths(tiny: TinyModel) -> None:
    """transformers' dynamic rope keeps the longest length it has met; a short text makes it start over."""
    with torch.no_grad():
        tiny.reference(input_ids=torch.tensor([[1]]), use_cache=False)


def prompt_tokens(length: int, seed: int = 0) -> list[int]:
    """A random prompt of the tiny vocabulary, control tokens left out."""
    rng = random.Random(seed)
    return [rng.randrange(8, 250) for _ in range(length)]


def assert_close(ours: Tensor, theirs: Tensor, what: str) -> None:
    """Log-probabilities equal within TOLERANCE, with a readable message."""
    assert ours.shape == theirs.shape, f"{what}: shape {tuple(ours.shape)} against {tuple(theirs.shape)}"
    gap = (ours - theirs).abs().max().item()
    assert gap <= TOLERANCE, f"{what}: log-probabilities differ by {gap:.2e}"
