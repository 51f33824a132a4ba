"""Draft: a StepPlan while it is being written, and the record of one that is in flight."""

from array import array

import numpy as np

from octavo.base.plan import AddedRow, NewBlocks, StepPlan
from octavo.kv.holding import Grant
from octavo.sched.ledger import Bools, Ledger, Longs, Roster
from octavo.sched.request import Request


class Draft:
    """Who is in a step, how far each goes, and whose next token it yields: those who run, then newcomers.

    Once closed `requests` are all that are in it, `sampled` those whose token it yields, and `places`
    where these tokens will stand.
    """

    __slots__ = ("_fresh", "_lead", "_rows", "added", "committed", "new_blocks", "places", "requests", "sampled")

    def __init__(self, running: Roster) -> None:
        self.added: list[AddedRow] = []
        self.new_blocks: list[NewBlocks] = []
        self.committed: list[int] = []  # blocks that became findable because of this step
        self.sampled = running
        self.requests = running.requests
        self.places: Longs
        self._rows: Longs
        self._lead: tuple[Longs, Longs, Bools]
        self._fresh: list[tuple[Request, int, int, bool]] = []

    def lead(self, starts: Longs, counts: Longs, yields: Bools) -> None:
        """Of the running, as many as these columns are long; a count of 0 leaves one out."""
        self._lead = starts, counts, yields

    def join(self, request: Request, start: int, count: int, yields: bool) -> None:
        """One that was not running before."""
        self._fresh.append((request, start, count, yields))

    def add_row(self, request: Request) -> None:
        """The request takes a row of the worker; its blocks are reserved, its tokens all known."""
        request.torn = False
        self.added.append(
            AddedRow(
                row=request.row,
                id=request.id,
                tokens=array("I", request.tokens),
                num_prompt=request.num_prompt,
                num_computed=request.computed,
                sampling=request.sampling,
                blocks=[table.copy() for table in request.holding.tables],
            )
        )

    def add_blocks(self, request: Request, grant: Grant) -> None:
        """The tables of a row grew, if they did."""
        if grant.blocks is not None:
            self.new_blocks.append(NewBlocks(request.row, [grant.first] * len(grant.blocks), grant.blocks))

    def close(self, ledger: Ledger) -> bool:
        """All have been told; False if that is nobody."""
        (starts, counts, yields), who = self._lead, self.sampled
        taken = counts > 0
        if taken.size != len(who) or not taken.all():
            who, starts, counts, yields = who.only(taken), starts[taken], counts[taken], yields[taken]
        if self._fresh:
            requests, *numbers, news = zip(*self._fresh)
            who = Roster.of([*who.requests, *requests], ledger)
            starts, counts = (np.append(old, new) for old, new in zip((starts, counts), numbers))
            yields = np.append(yields, news)
        self.requests, self.places = who.requests, starts + counts
        self._lead, self._rows = (starts, counts, yields), who.rows
        self.sampled = who
        if not yields.all():
            self.sampled, self.places = who.only(yields), self.places[yields]
        return bool(who.requests)

    def plan(self, step: int, dropped: list[int]) -> StepPlan:
        """The finished plan."""
        starts, counts, yields = self._lead
        return StepPlan(
            step=step,
            dropped=dropped,
            added=self.added,
            new_blocks=self.new_blocks,
            rows=_numbers(self._rows),
            num_tokens=_numbers(counts),
            starts=_numbers(starts),
            sample=_numbers(np.flatnonzero(yields)),
        )


def _numbers(column: Longs) -> "array[int]":
    """Plain numbers, laid out as the worker wants them."""
    return array("q", column.tobytes())
