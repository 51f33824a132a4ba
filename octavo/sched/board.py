"""Board: who waits, who runs, and what they hold. Every change of a request's state happens here."""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from octavo.base.clock import Clock
from octavo.base.specs import KVLayout
from octavo.base.wire import EngineStats
from octavo.kv.holding import Grant, Match
from octavo.kv.manager import KVManager
from octavo.sched.gates import RowPool
from octavo.sched.ledger import COMPUTED, KNOWN, Ledger, Roster
from octavo.sched.limits import Limits
from octavo.sched.policies import make_queue
from octavo.sched.request import Request, State

_by_order = attrgetter("order")


@dataclass
class Counters:
    """Totals since the engine began, by the names that EngineStats has for them."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    failures: int = 0
    corrupted: int = 0


class Board:
    """`running` is sorted, by order or as the policy ranks it: the first one is the last to be preempted."""

    def __init__(self, layout: KVLayout, limits: Limits, clock: Clock) -> None:
        self.kv = KVManager(layout, limits.prefix_caching)
        self.rows = RowPool(limits.max_rows)
        self.ledger = Ledger(limits.max_rows)
        self.requests: dict[str, Request] = {}  # all that have not ended
        self.running: list[Request] = []
        self.waiting = make_queue(limits, clock)
        self.counters = Counters()
        self._clock = clock
        self._step_tokens = limits.max_num_batched_tokens
        self._roster: Roster | None = None

    @property
    def roster(self) -> Roster:
        """Those who run, as columns."""
        if self._roster is None or self._roster.requests != self.running:  # `running` may be sorted anew
            self._roster = Roster.of(self.running, self.ledger)
        return self._roster

    def past(self) -> int:
        """Tokens computed of those of the running who compute one a step."""
        columns, rows = self.ledger.columns, self.roster.rows
        computed = columns[COMPUTED].take(rows)
        return int(computed[columns[KNOWN].take(rows) - computed <= 1].sum())

    def saw(self, everyone: Roster) -> None:
        """A roster that was made for another purpose; it will do if it is of those who run."""
        if self._roster is None and everyone.requests == self.running:
            self._roster = everyone

    def enter(self, request: Request) -> None:
        """A newcomer joins the waiting."""
        request.arrived_s = self._clock.now()
        request.billed = len(request.tokens)
        self.requests[request.id] = request
        self.waiting.push(request)

    def start(self, request: Request, match: Match, want: int) -> Grant | None:
        """WAITING to RUNNING with room for up to `want` tokens after the match; None, and no change, without room."""
        grant = self.kv.open(request.holding, match, want)
        if grant is None:
            return None
        request.computed = match.num_tokens
        self.waiting.take(request)
        request.state = State.RUNNING
        request.sit(self.rows.take(), self.ledger)
        if not request.started:
            request.queued_s = self._clock.now() - request.arrived_s
            request.cached_tokens = min(match.num_tokens, request.num_prompt)
            if self.kv.prefix_caching and request.may_hit:
                self.counters.prefix_queries += request.num_prompt
                self.counters.prefix_hits += request.cached_tokens
        insort(self.running, request, key=_by_order)
        self._roster = None
        return grant

    def preempt(self, request: Request) -> None:
        """RUNNING to WAITING. Its blocks and row are free at once, since the device runs steps in order; what it
        had computed is computed again, or found in the prefix cache."""
        self.running.remove(request)
        self._let_go(request)
        request.state = State.WAITING
        request.computed = 0
        self.waiting.push(request)
        self.counters.preemptions += 1
        request.preemptions += 1

    def end(self, request: Request) -> None:
        """To DONE. A running one must be taken from `running` by the caller, who may have many to take."""
        if request.state is State.WAITING:
            self.waiting.remove(request)
        elif request.state is State.RUNNING:
            self._let_go(request)
            self.waiting.account((request,))
        else:
            raise ValueError(f"request {request.id} has ended already")
        request.state = State.DONE
        del self.requests[request.id]

    @property
    def plenty(self) -> bool:
        """Whether there are blocks for whatever may run in one step."""
        kv = self.kv
        return kv.pool.num_free >= (self._step_tokens // kv.block_size + len(self.running)) * kv.num_groups

    def arrange(self, welcome: Callable[[Request], bool]) -> bool:
        """Before a step is planned: the policy says who gives up blocks if they run out, and who gives way.

        `welcome`: whether a waiting request would start if others gave way. True if any did.
        """
        waiting, running, plenty = self.waiting, self.running, self.plenty
        if plenty and not len(waiting):
            return False
        self.ledger.lines.settle()  # what each has been given is told by its line
        if not plenty:
            waiting.rank(running)
        if not len(waiting):
            return False
        waiting.account(running)
        first = waiting.peek()
        if first is None or first.in_flight:
            return False
        yielding = waiting.yielding(first, running)
        return bool(yielding) and welcome(first) and self._give_way(first, yielding)

    def spare(self, running: int) -> int:
        """Blocks left free for so many that run, so that a newcomer is not preempted at once: one a table, within a
        twentieth of the cache."""
        return min(running * self.kv.num_groups, self.kv.num_blocks // 20)

    def _give_way(self, first: Request, yielding: Sequence[Request]) -> bool:
        """Preempt as few of `yielding` as let `first` start in this step; none if all of them would not."""
        kv = self.kv
        match = kv.match(first.holding, first.tokens) if first.may_hit else kv.no_match()
        kept = {block for table in match.blocks for block in table}
        freed, chunk = 0, first.known - match.num_tokens
        for gone in range(len(yielding) + 1):
            left = len(self.running) - gone
            fits = not left or kv.fits(match, first.known, chunk, self.spare(left) - freed)
            if fits and (gone or self.rows.num_free):
                for request in yielding[:gone]:
                    self.preempt(request)
                return gone > 0
            if gone < len(yielding):
                freed += kv.freed_by(yielding[gone].holding, kept)
        return False

    def overdue(self) -> list[Request]:
        """Those that have waited longer than they may for their first start."""
        now = self._clock.now()
        return [
            request
            for request in self.waiting
            if request.max_wait_s and not request.started and now - request.arrived_s > request.max_wait_s
        ]

    def sweep(self) -> None:
        """Take from `running` those that are done."""
        self.running = [request for request in self.running if request.state is State.RUNNING]

    def stats(self, figures: dict[str, float]) -> EngineStats:
        """Gauges now, and counters; `figures` are those of a feature."""
        kv = self.kv
        reserved = kv.pool.num_used * kv.block_size
        unused = kv.capacity - int(np.add.reduce(self.ledger.columns[COMPUTED]))
        return EngineStats(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_usage=kv.usage,
            kv_waste=unused * kv.num_groups / reserved if reserved else 0.0,
            figures=figures,
            **vars(self.counters),
        )

    def _let_go(self, request: Request) -> None:
        self._roster = None
        self.kv.free(request.holding)
        self.rows.release(request.rise(self.ledger))
