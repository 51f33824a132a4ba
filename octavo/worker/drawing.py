"""Draws as captured work: tokens from logits, for rows that want no more than a temperature, filters, penalties and
log-probabilities; each row gets what it asked for, and one that asked for nothing its likeliest token."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo.base.params import MAX_LOGPROBS
from octavo.kernels.ops import Ops
from octavo.platform.base import Captured, Cut, Platform
from octavo.worker.columns import Columns
from octavo.worker.launch import Draws, Ground
from octavo.worker.sample.filters import over_temperature
from octavo.worker.sample.penalties import said_of
from octavo.worker.sample.step import TOKEN_STREAM, RiderRule

DRAWN_ROWS = 128  # rows of the largest room that draws; logits and counts for so many are shared by all such rooms


@dataclass(frozen=True, slots=True)
class Drawing:
    """The draw of one room."""

    score: Captured[Tensor]  # logits [R, V] fp32
    keep: Captured[Tensor]  # a copy of those
    rules: dict[str, Captured[None]]  # changes to the logits, by their riders' names
    draw: Captured[Tensor]  # tokens [R] from them
    describe: Captured[Tensor]  # log-probabilities of those, by the copy
    _made: dict[int, Draws] = field(default_factory=dict)

    def of(self, count: int) -> Draws:
        """For the first so many rows; they stay the same."""
        found = self._made.get(count)
        if found is None:
            found = self._made[count] = self._first(count)
        return found

    def _first(self, count: int) -> Draws:
        return Draws(
            lambda: first_of(self.score.replay(), count),
            self.keep.replay,
            {name: rule.replay for name, rule in self.rules.items()},
            lambda: first_of(self.draw.replay(), count),
            lambda: first_of(self.describe.replay(), count),
        )


class DrawingBoard:
    """What the rooms that draw work on."""

    def __init__(
        self, platform: Platform, ops: Ops, ground: Ground, rows: int, rules: Mapping[str, RiderRule] = {}
    ) -> None:
        """`rows`: of the largest room there is. `rules`: those whose work is captured, by the riders that they read."""
        self._platform = platform
        self._ops = ops
        self._model = ground.model
        self._table = ground.table
        self._rules = rules
        shape, device = (min(rows, DRAWN_ROWS), ground.table.vocab_size), platform.device
        self._logits = torch.empty(shape, dtype=torch.float32, device=device)
        self._kept = torch.empty(shape, dtype=torch.float32, device=device)
        self._counts = torch.zeros(shape, dtype=torch.int32, device=device)

    def has_room_for(self, rows: int) -> bool:
        """Whether so many can be drawn at once."""
        return rows <= len(self._logits)

    def capture(self, chosen: Callable[[], Tensor], rows: Tensor, positions: Tensor) -> Drawing:
        """Of the hidden states that `chosen` says, for rows ``[R]`` of the table and places ``[R]`` in their lines. The
        work is tried out on them as they are."""
        count = rows.shape[0]
        logits, kept, counts = self._logits[:count], self._kept[:count], self._counts[:count]

        def score(_: Cut) -> Tensor:
            return logits.copy_(self._model.logits(chosen()))

        def draw(_: Cut) -> Tensor:
            columns = Columns(self._table.columns.index_select(0, rows))
            self._ops.penalize(logits, counts, said_of(columns, self._table.tokens, rows, positions))
            over_temperature(logits, columns)
            self._ops.narrow(logits, columns.top_k, columns.top_p, columns.min_p)
            tokens = self._ops.draw(logits, columns.seed, positions, columns.temperature, TOKEN_STREAM)
            self._table.write(rows, positions, tokens)
            drawn[:] = [tokens, columns.told]
            return tokens

        def describe(_: Cut) -> Tensor:
            tokens, told = drawn
            # Of a draw that was captured but not done yet they are any numbers.
            tokens = tokens.clamp(min=0, max=self._table.vocab_size - 1)
            return self._ops.describe(kept, tokens, MAX_LOGPROBS, None, told)

        drawn: list[Tensor] = []
        capture = self._platform.capture
        return Drawing(
            score=capture(score),
            keep=capture(lambda _: kept.copy_(logits)),
            rules={name: capture(_worked(rule, logits)) for name, rule in self._rules.items()},
            draw=capture(draw),
            describe=capture(describe),
        )


def first_of(tensor: Tensor, count: int) -> Tensor:
    """The first `count` of it."""
    return tensor if tensor.shape[0] == count else tensor[:count]


def _worked(rule: RiderRule, logits: Tensor) -> Callable[[Cut], None]:
    return lambda _: rule.work(logits)
