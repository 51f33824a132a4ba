"""Lineup: who is in a step and how far each goes, which is all of a plan but where each begins.

While nobody comes or goes, plans carry the very same columns, and what was made of them holds for the next step too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from octavo.base.plan import StepPlan
from octavo.worker.staging import Longs


@dataclass(frozen=True)
class Lineup:
    """R rows, of which S are sampled."""

    columns: tuple[Sequence[int], Sequence[int], Sequence[int]]  # the plan's rows, num_tokens and sample
    rows: Longs  # [R]
    counts: Longs  # [R]
    query_start: Longs  # [R + 1]
    sample: Longs  # [S]
    sampled_rows: Longs  # [S]
    total: int  # tokens
    mixed: bool  # some row has several tokens, or is not sampled
    fresh: bool  # a row alone, of which nothing was computed before

    @classmethod
    def of(cls, plan: StepPlan) -> "Lineup":
        columns = plan.rows, plan.num_tokens, plan.sample
        rows, counts, sample = (np.asarray(each, dtype=np.int64) for each in columns)
        query_start = np.zeros(rows.size + 1, dtype=np.int64)
        np.cumsum(counts, out=query_start[1:])
        total = int(query_start[-1])
        mixed = not total == rows.size == sample.size
        return cls(columns, rows, counts, query_start, sample, rows[sample], total, mixed, _is_fresh(plan))

    @cached_property
    def seats(self) -> Longs:
        """Of the table's rows, as far as the last one in the step: where each stands, -1 for nowhere."""
        seats = np.full(int(self.rows.max(initial=-1)) + 1, -1, dtype=np.int64)
        seats[self.rows] = np.arange(self.rows.size)
        return seats

    def is_of(self, plan: StepPlan) -> bool:
        """Whether the plan has the very columns that this was made of, which never change."""
        rows, counts, sample = self.columns
        same = rows is plan.rows and counts is plan.num_tokens and sample is plan.sample
        return same and self.fresh == _is_fresh(plan)


def _is_fresh(plan: StepPlan) -> bool:
    return len(plan.rows) == 1 and plan.starts[0] == 0


NOBODY = Lineup.of(StepPlan(-1, [], [], [], [], [], [], []))
