"""Repetition, frequency and presence penalties (Keskar et al. 2019, CTRL; OpenAI's API), as vLLM applies them.

Nothing is kept between steps: the counts are taken anew from the row's token line, where the newest token already
is. So preemption, one-step-ahead planning and row reuse need no care here, and rows without penalties no memory.
"""

import numpy as np
import torch
from torch import Tensor

from octavo.base.plan import AddedRow
from octavo.worker.sample.step import Asked, SampleStep, chosen, give, take
from octavo.worker.staging import Ints, Longs

_SLAB = 1 << 22  # token places looked at in one go; bounds the memory of many long rows


class Penalties:
    """Repetition looks at prompt and output, frequency and presence at the output only."""

    hides = False

    def __init__(self, max_rows: int) -> None:
        self._asked = Asked(max_rows)
        self._repeats = np.zeros(max_rows + 1, dtype=np.bool_)
        self._counts = np.zeros(max_rows + 1, dtype=np.bool_)

    def add(self, added: AddedRow) -> None:
        sampling, row = added.sampling, added.row
        self._repeats[row] = sampling.repetition_penalty != 1.0
        self._counts[row] = sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
        self._asked.set(row, bool(self._repeats[row] or self._counts[row]))

    def drop(self, row: int) -> None:
        self._asked.set(row, False)
        self._repeats[row] = self._counts[row] = False

    def stage(self, rows: Longs, num_tokens: Longs) -> list[Ints] | None:  # noqa: ARG002
        return self._asked.index(rows)

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:
        index = chosen(staged[0])
        part = take(logits, index)
        rows, num_tokens = take(step.rows, index), take(step.positions, index)
        columns = step.columns.select(index)
        repeats = bool(self._repeats[step.host_rows].any())
        counts = bool(self._counts[step.host_rows].any())
        longest = int(step.num_tokens.max())
        size = max(1, _SLAB // max(longest, logits.shape[1]))
        for start in range(0, part.shape[0], size):
            span = slice(start, start + size)
            ids = step.tokens[:, :longest].index_select(0, rows[span]).long()
            place = torch.arange(longest, device=ids.device)
            known = place < num_tokens[span, None]
            if repeats:
                repetition(part[span], ids, known, columns.repetition_penalty[span])
            if counts:
                output = known & (place >= columns.num_prompt[span, None])
                occurrence(part[span], ids, output, columns.frequency_penalty[span], columns.presence_penalty[span])
        give(logits, index, part)


def repetition(logits: Tensor, ids: Tensor, known: Tensor, penalty: Tensor) -> None:
    """Divide in place the logits ``[s, V]`` of each id ``[s, L]`` where `known` by the penalty ``[s]``.

    A negative logit is multiplied, so that both sink.
    """
    factor = penalty[:, None].masked_fill(_count(logits, ids, known) == 0, 1.0)
    logits.mul_(torch.where(logits > 0, 1.0 / factor, factor))


def occurrence(logits: Tensor, ids: Tensor, output: Tensor, frequency: Tensor, presence: Tensor) -> None:
    """Lower in place the logits ``[s, V]`` of each id ``[s, L]`` where `output`.

    By `frequency` ``[s]`` times its count, and once by `presence` ``[s]``.
    """
    counts = _count(logits, ids, output)
    logits.sub_(frequency[:, None] * counts)
    logits.sub_(presence[:, None] * (counts > 0))


def _count(logits: Tensor, ids: Tensor, where: Tensor) -> Tensor:
    zeros = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
    return zeros.scatter_add_(1, ids, where.to(torch.int32))
