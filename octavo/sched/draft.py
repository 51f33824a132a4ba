"""Draft: a StepPlan while it is being written, and the record of one that is in flight."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.base.plan import AddedRow, NewBlocks, StepPlan
from octavo.sched.ledger import Bools, Ledger, Longs, Roster
from octavo.sched.request import Request


class Draft:
    """Who is in a step, how far each goes, and whose next token it yields: those who run, then newcomers.

    Once closed `requests` are all that are in it, `sampled` those whose token it yields, and `places`
    where these tokens will stand.
    """

    __slots__ = (
        "_fresh",
        "_lead",
        "_steady",
        "_who",
        "added",
        "committed",
        "new_blocks",
        "places",
        "requests",
        "sampled",
    )

    def __init__(self, running: Roster) -> None:
        self.added: list[AddedRow] = []
        self.new_blocks: list[NewBlocks] = []
        self.committed: list[int] = []  # blocks that became findable because of this step
        self.sampled = running
        self.requests = running.requests
        self.places: Longs
        self._who = running
        self._lead: tuple[Longs, Longs, Bools] = _NO_LEAD
        self._steady = False
        self._fresh: list[tuple[Request, int, int, bool]] = []

    def decode(self, starts: Longs, ends: Longs) -> None:
        """All of the running compute one token each, from `starts` to `ends`, which yields the next."""
        self._steady = True
        self._lead = starts, starts, _NO_LEAD[2]
        self.places = ends

    def lead(self, starts: Longs, counts: Longs, yields: Bools) -> None:
        """Of the running, as many as these columns are long; a count of 0 leaves one out."""
        self._lead = starts, counts, yields
        self._steady = counts.size == len(self._who) and bool((counts == 1).all() and yields.all())
        if self._steady:
            self.places = starts + 1

    def join(self, request: Request, start: int, count: int, yields: bool) -> None:
        """One that was not running before."""
        self._fresh.append((request, start, count, yields))

    def add_row(self, request: Request) -> None:
        """The request takes a row of the worker; its blocks are reserved, its tokens all known."""
        request.torn = False
        tokens = array("I")
        tokens.fromlist(request.tokens)  # half again as quick as to make the array of them
        self.added.append(
            AddedRow(
                row=request.row,
                id=request.id,
                tokens=tokens,
                num_prompt=request.num_prompt,
                num_computed=request.computed,
                sampling=request.sampling,
                blocks=[table.copy() for table in request.holding.tables],
            )
        )

    def add_blocks(self, rows: Longs, places: Longs, blocks: list[list[int]]) -> None:
        """Tables grew: ``blocks[group][i]`` stands at ``places[i]`` of the row ``rows[i]``, for each KV group."""
        groups, count = len(blocks), len(rows)
        if groups > 1:
            rows, places = np.tile(rows, groups), np.tile(places, groups)
        which, flat = array("q"), array("q")
        for group, new in enumerate(blocks):
            which.extend(array("q", [group]) * count)
            flat.fromlist(new)
        self.new_blocks.append(NewBlocks(_numbers(rows), which, _numbers(places), flat))

    def close(self, ledger: Ledger) -> bool:
        """All have been told; False if that is nobody."""
        starts, counts, yields = self._lead
        if self._steady and not self._fresh:
            return True
        who = self._who
        if self._steady:
            counts, yields = np.ones(len(who), dtype=np.int64), np.ones(len(who), dtype=np.bool_)
            self._steady = False
        elif not self._fresh and not np.count_nonzero(counts):
            return False
        elif np.count_nonzero(counts) < len(who):
            taken = counts > 0
            who, starts, counts, yields = who.only(taken), starts[taken], counts[taken], yields[taken]
        if self._fresh:
            requests, *numbers, news = zip(*self._fresh)
            who = Roster.of([*who.requests, *requests], ledger)
            starts, counts, yields = map(_joined, (starts, counts, yields), (*numbers, news))
        self._lead, self._who = (starts, counts, yields), who
        self.requests, self.sampled, self.places = who.requests, who, starts + counts
        if np.count_nonzero(yields) < len(who):
            self.sampled, self.places = who.only(yields), self.places[yields]
        return bool(who.requests)

    @property
    def starts(self) -> bool:
        """Whether all that are in it have just begun to run."""
        return len(self._fresh) == len(self._who)

    @property
    def everyone(self) -> Roster:
        """All that are in it."""
        return self._who

    def plan(self, step: int, dropped: list[int]) -> StepPlan:
        """The finished plan."""
        starts, counts, yields = self._lead
        if self._steady:
            rows, num_tokens, sample = self._who.decoding
        else:
            rows, num_tokens, sample = (_numbers(each) for each in (self._who.rows, counts, yields.nonzero()[0]))
        return StepPlan(
            step=step,
            dropped=dropped,
            added=self.added,
            new_blocks=self.new_blocks,
            rows=rows,
            num_tokens=num_tokens,
            starts=_numbers(starts),
            sample=sample,
        )


def _joined(column: Any, more: Sequence[int]) -> Any:
    new = np.array(more, dtype=column.dtype)
    return np.concatenate([column, new]) if column.size else new


def _numbers(column: Longs) -> "array[int]":
    """Plain numbers, laid out as the worker wants them."""
    return array("q", column.tobytes())


_NO_LEAD = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
