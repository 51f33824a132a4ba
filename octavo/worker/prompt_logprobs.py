"""Log-probabilities of prompt tokens, read off the hidden states that a prefill chunk yields anyway.

The logits of a long chunk would not fit (a position of a large vocabulary is half a megabyte): they are made and
reduced slab by slab.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.base.plan import StepPlan
from octavo.kernels.ops import Describe
from octavo.worker.batch import Batch
from octavo.worker.model import Model
from octavo.worker.sample.logprobs import run_of
from octavo.worker.sample.step import slabs
from octavo.worker.staging import Ints, Stager, ints
from octavo.worker.table import RequestTable

SLAB_BYTES = 64 << 20  # of fp32 logits


@dataclass(slots=True)
class PromptSpans:
    """The P prompt positions that this step can report. Device tensors ``[P]`` int64."""

    index: Tensor  # places in T whose logits tell of them
    rows: Tensor  # where the tokens stand in the table
    positions: Tensor
    entries: list[int]  # indexes into plan.rows
    counts: list[int]  # positions of each entry
    tops: list[int]  # likeliest tokens that each entry reports


class PromptLogprobs:
    """Knows which rows asked; finds their positions in a batch; makes the numbers."""

    def __init__(self, table: RequestTable, stager: Stager, describe: Describe, slab_bytes: int = SLAB_BYTES) -> None:
        self._table = table
        self._describe = describe
        self._stager = stager
        self._slab = slab_bytes // 4  # numbers
        self._tops = np.full(table.max_rows + 1, -1, dtype=np.int64)
        self._asking: set[int] = set()  # rows whose `_tops` says so

    def apply(self, plan: StepPlan) -> None:
        self._asking.difference_update(plan.dropped)
        for added in plan.added:
            self._tops[added.row] = added.sampling.prompt_logprobs
            if added.sampling.prompt_logprobs >= 0:
                self._asking.add(added.row)
            else:
                self._asking.discard(added.row)

    def asked(self, rows: Sequence[int]) -> bool:
        """Whether any of these rows of the table wants them."""
        return bool(self._asking) and not self._asking.isdisjoint(rows)

    def prepare(self, batch: Batch) -> PromptSpans | None:
        """The spans of a batch; None when no row of it wants any."""
        if not self._asking:
            return None
        tops = self._tops[batch.rows]
        if tops.max(initial=-1) < 0:
            return None
        # Hidden state of position p tells of p + 1, as far as that is a prompt token.
        lengths = np.diff(batch.query_start)
        counts = np.minimum(lengths, self._table.num_prompt[batch.rows] - 1 - batch.starts)
        entries = np.flatnonzero((tops >= 0) & (counts > 0))
        if not entries.size:
            return None
        counts = counts[entries]
        step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        index = np.repeat(batch.query_start[entries], counts) + step
        rows = np.repeat(batch.rows[entries], counts)
        targets = np.repeat(batch.starts[entries], counts) + step + 1
        places, row_ids, positions = (
            view.long() for view in self._stager.send([ints(index), ints(rows), ints(targets)])
        )
        return PromptSpans(
            index=places,
            rows=row_ids,
            positions=positions,
            entries=entries.tolist(),
            counts=counts.tolist(),
            tops=tops[entries].tolist(),
        )

    def compute(self, hidden: Tensor, model: Model, spans: PromptSpans) -> Tensor:
        """`describe` of all positions ``[P, 3 + 2 top]`` int32, on the device."""
        tokens = self._table.read(spans.rows, spans.positions).long()
        top = max(spans.tops)
        parts = [
            self._describe(model.logits(hidden.index_select(0, spans.index[span])), tokens[span], top)
            for span in slabs(tokens.numel(), self._table.vocab_size, self._slab)
        ]
        return torch.cat(parts)


def split(lines: Ints, spans: PromptSpans) -> dict[int, bytes]:
    """The host form for StepResult: index into plan.rows -> positions in order."""
    result, at = {}, 0
    for entry, count, top in zip(spans.entries, spans.counts, spans.tops):
        result[entry] = run_of(lines[at : at + count], top)
        at += count
    return result
