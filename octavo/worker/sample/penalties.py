"""Repetition, frequency and presence penalties (Keskar et al. 2019, CTRL; OpenAI's API), as vLLM applies them.

Nothing is kept between steps: the counts are taken anew from the row's token line, where the newest token already
is. So preemption, one-step-ahead planning and row reuse need no care here, and rows without penalties no memory.
"""

import torch
from torch import Tensor

from octavo.base.plan import AddedRow
from octavo.kernels import ops
from octavo.kernels.context import Said
from octavo.worker.columns import Columns, penalizes
from octavo.worker.sample.step import Asked, SampleStep, chosen, give, slabs, take
from octavo.worker.staging import Ints, Longs


class Penalties:
    """Repetition looks at prompt and output, frequency and presence at the output only."""

    hides = False

    def __init__(self, max_rows: int, penalize: ops.Penalize) -> None:
        self._asked = Asked(max_rows)
        self._penalize = penalize

    def add(self, added: AddedRow) -> None:
        self._asked.set(added.row, penalizes(added.sampling))

    def drop(self, row: int) -> None:
        self._asked.set(row, False)

    def stage(self, rows: Longs, num_tokens: Longs) -> list[Ints] | None:  # noqa: ARG002
        return self._asked.index(rows)

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:
        index = chosen(staged[0])
        part, rows, lengths = take(logits, index), take(step.rows, index), take(step.positions, index)
        columns = step.columns.select(index)
        lines = step.tokens[:, : int(step.num_tokens.max())]
        for span in slabs(part.shape[0], max(lines.shape[1], part.shape[1])):
            counts = torch.zeros(part[span].shape, dtype=torch.int32, device=part.device)
            self._penalize(part[span], counts, said_of(columns.part(span), lines, rows[span], lengths[span]))
        give(logits, index, part)


def said_of(columns: Columns, lines: Tensor, rows: Tensor, lengths: Tensor) -> Said:
    """What rows ``[S]`` of the lines said, and what their columns ask to be made of it."""
    return Said(
        lines=lines,
        rows=rows,
        lengths=lengths,
        num_prompt=columns.num_prompt,
        repetition=columns.repetition_penalty,
        frequency=columns.frequency_penalty,
        presence=columns.presence_penalty,
    )
