"""The scheduler: which tokens to compute next. The one loop of the plan side.

There is no prefill and no decode: each step lets every request's computed tokens chase its known ones, running
requests first, then waiting ones, as far as the gates and the KV cache allow.

`plan` may be called before the results of earlier plans are in. A request then counts one token as known for each
step in flight that will sample it; the device finds that token where the earlier step left it. No step is planned
past `max_tokens` or the context.

Why some request always advances: `running` is sorted, later ones are preempted for the sake of earlier ones, and
`add` refuses what would not fit alone. So the first running request gets a token in every plan, unless its last
token is on the way already. If none runs, all blocks are free and the first waiting request starts. A policy may
sort anew between plans, but each request loses its place so only a bounded number of times (sched/priority.py).
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from octavo.base.clock import Clock, SystemClock
from octavo.base.errors import UserError
from octavo.base.plan import StepPlan, StepResult
from octavo.base.specs import KVLayout
from octavo.base.wire import EngineRequest, EngineStats, Outputs, TokenOutput
from octavo.kv.capacity import longest_alone
from octavo.kv.holding import Grant
from octavo.sched.admission import check
from octavo.sched.board import Board
from octavo.sched.draft import Draft
from octavo.sched.finish import ended, refused
from octavo.sched.gates import HOLD, MakeGates, RowGate, standard_gates
from octavo.sched.growth import grow
from octavo.sched.ledger import HORIZON
from octavo.sched.limits import Limits
from octavo.sched.request import Request
from octavo.sched.update import Update

IN_USE = "a request with this id is running already"
_NONE: dict[str, float] = {}


def given_salt(wire: EngineRequest) -> str:
    """Requests share blocks of equal prefixes if their callers gave equal salts."""
    return wire.cache_salt


class Scheduler:
    """Owns all requests from `add` until their last output."""

    def __init__(
        self,
        layout: KVLayout,
        limits: Limits,
        gates: MakeGates = standard_gates,
        salt: Callable[[EngineRequest], str] = given_salt,
        clock: Clock = SystemClock(),  # noqa: B008 - it has no state
    ) -> None:
        self.board = Board(layout, limits, clock)
        self._limits = limits
        self._gates = gates(limits, self.board.rows)
        self._salt = salt
        self._longest = longest_alone(layout, limits.max_model_len)
        self._arrivals = 0
        self._step = 0
        self._in_flight: deque[tuple[StepPlan, Draft]] = deque()

    # --- requests

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self.board.requests)

    def add(self, wire: EngineRequest) -> None:
        """Take a request. UserError if it can never run, Overloaded if the line is full."""
        if wire.id in self.board.requests:
            raise UserError(IN_USE, param="id")
        check(wire, self._limits, self._longest)
        order = self.board.waiting.order(wire.priority, self._arrivals)
        if wire.progress is None:  # one that comes back had its place already
            self.board.waiting.check_room(len(wire.tokens))
        self._arrivals += 1
        holding = self.board.kv.hold(self._salt(wire))
        request = Request(wire, order, holding, self._limits.max_model_len)
        self.board.enter(request)

    def abort(self, ids: Sequence[str]) -> list[TokenOutput]:
        """End these requests, whatever they are doing. Unknown ids are passed over: they may just have ended."""
        return self._end(ids, "abort")

    def reject(self, ids: Sequence[str], error: str | UserError) -> list[TokenOutput]:
        """End these requests with an error: the server's, said in a few words, or their own. Unknown ids are passed
        over."""
        return self._end(ids, "error", error)

    def amend(self, ids: Sequence[str]) -> None:
        """The newest token of these requests was altered after the device had drawn it: tell the device what holds."""
        for id in ids:
            request = self.board.requests.get(id)
            if request is not None:
                request.tear()

    def give_up(self) -> list[TokenOutput]:
        """End the requests that have waited longer than they may. Costs a look at each that waits."""
        late = self.board.overdue()
        for request in late:
            self.board.end(request)
        return [refused(request.id, self.board.waiting.too_late(request.max_wait_s)) for request in late]

    def stats(self, figures: dict[str, float] = _NONE) -> EngineStats:
        """Gauges now, and counters since the beginning; `figures` are those of a feature."""
        return self.board.stats(figures)

    def set_aside(self) -> None:
        """Let all that run wait again, no step being in flight; their next starts compute them anew."""
        for request in reversed(self.board.running.copy()):
            self.board.preempt(request)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        self.board.kv.forget_prefixes()

    def _end(self, ids: Sequence[str], finish: str, error: str | UserError | None = None) -> list[TokenOutput]:
        requests = [self.board.requests[id] for id in dict.fromkeys(ids) if id in self.board.requests]
        for request in requests:
            self.board.end(request)
        if requests:
            self.board.sweep()
        return [ended(request, finish, error) for request in requests]

    # --- the loop

    def plan(self) -> StepPlan | None:
        """The next step, or None if nothing can be computed now: no work, or all of it waits for results."""
        board = self.board
        board.kv.settle()  # what the step before this promised, now that the device is at work on it
        self._open_gates()
        if board.arrange(self._welcome):
            self._open_gates()
        draft = Draft(board.roster)
        before = board.counters.preemptions
        self._plan_running(draft)
        if board.counters.preemptions == before:
            self._plan_waiting(draft)
        if not draft.close(board.ledger):
            return None
        self._step += 1
        board.counters.steps += 1
        board.saw(draft.everyone)
        plan = draft.plan(self._step, board.rows.take_dropped())
        self._in_flight.append((plan, draft))
        return plan

    def _open_gates(self) -> None:
        running, past = len(self.board.running), self.board.past
        for gate in self._gates:
            gate.open(running, past)

    def _welcome(self, request: Request) -> bool:
        """Whether only rows and blocks may keep a waiting request from starting, which others could give up."""
        return all(gate.allow(request, 1) for gate in self._gates if not isinstance(gate, RowGate))

    def _plan_running(self, draft: Draft) -> None:
        """Every running request gets a token at least, in order; the last ones may be preempted for the first.

        Those that need one token and have room for it are told apart by their numbers alone; who then needs but
        one more block is served with all others of its kind.
        """
        board, roster = self.board, draft.everyone
        if not len(roster):
            return
        rows = roster.rows
        all_known, all_computed, horizons = board.ledger.columns[: HORIZON + 1]
        starts, known = all_computed.take(rows), all_known.take(rows)
        single = known - starts == 1
        steady = single & (known < horizons.take(rows))
        ready = np.count_nonzero(steady)
        if ready < len(roster):
            places = grow(board, draft, roster, starts, known, single)
            steady[places] = True
            ready = np.count_nonzero(steady)
        if ready == len(roster):
            all_known[rows] = known + 1
            all_computed[rows] = known
            draft.decode(starts, known)
            return
        counts, yields = steady.astype(np.int64), steady.copy()
        places = (~steady).nonzero()[0]
        for place, start, end in zip(places.tolist(), starts[places].tolist(), known[places].tolist()):
            if place >= len(board.running):
                break  # it was preempted meanwhile, and so are all behind it
            counts[place], yields[place] = self._advance(roster.requests[place], start, end, draft)
        stay = len(board.running)
        steady = steady[:stay]
        all_known[rows[:stay][steady]] = known[:stay][steady] + 1
        all_computed[rows[:stay][steady]] = known[:stay][steady]
        draft.lead(starts[:stay], counts[:stay], yields[:stay])

    def _advance(self, request: Request, start: int, known: int, draft: Draft) -> tuple[int, bool]:
        """A running request that needs more blocks, or has more than one token to compute, or none.

        How many it computes, and whether they yield the next one.
        """
        if known >= request.limit or (request.torn and request.in_flight):
            return 0, False
        want = known - start
        extra = self._allow(request, want - 1) if want > 1 else 0
        if extra == HOLD:
            return 0, False
        grant = self._reserve(request, start, 1 + extra)
        if grant is None:
            return 0, False
        if grant.num_tokens > 1:
            self._spend(request, grant.num_tokens - 1)
        if request.torn:
            self.board.rows.redo(request.row)
            draft.add_row(request)
        elif grant.blocks is not None:
            count = len(grant.blocks[0])
            places = np.arange(grant.first, grant.first + count)
            draft.add_blocks(np.full(count, request.row), places, grant.blocks)
        return grant.num_tokens, self._compute(request, start, known, grant.num_tokens, draft)

    def _reserve(self, request: Request, start: int, want: int) -> Grant | None:
        """Room for up to `want` tokens, if need be from those last in order; None if it was last itself."""
        board = self.board
        while True:
            grant = board.kv.reserve(request.holding, start, want)
            if grant is not None:
                return grant
            victim = board.running[-1]
            board.preempt(victim)
            if victim is request:
                return None

    def _plan_waiting(self, draft: Draft) -> None:
        """Start waiting requests in order until one has to wait; none passes another."""
        waiting = self.board.waiting
        while True:
            request = waiting.peek()
            if request is None or request.in_flight or not self._start(request, draft):
                return

    def _start(self, request: Request, draft: Draft) -> bool:
        """Start one, if the gates and the KV cache let it."""
        board = self.board
        kv = board.kv
        spare = board.spare(len(board.running))
        if not self._allow(request, 1) or kv.pool.num_free < kv.num_groups + spare:
            return False
        match = kv.match(request.holding, request.tokens) if request.may_hit else kv.no_match()
        want = self._allow(request, request.known - match.num_tokens)
        if board.running and not kv.fits(match, request.known, want, spare):
            return False
        grant = board.start(request, match, want)
        if grant is None:
            return False
        self._spend(request, grant.num_tokens)
        draft.add_row(request)
        start, count = request.computed, grant.num_tokens
        draft.join(request, start, count, self._compute(request, start, request.known, count, draft))
        return True

    def _compute(self, request: Request, start: int, known: int, count: int, draft: Draft) -> bool:
        """Plan `count` tokens; the blocks they fill can be found from now on. Whether they yield the next one."""
        board = self.board
        end, kv = start + count, board.kv
        if start < request.num_prompt:
            board.counters.prompt_tokens += min(request.num_prompt, end) - start
        request.computed = end
        if end == known:
            request.known = known + 1
        request.horizon = request.next_horizon()
        sure = min(end, len(request.tokens))
        if sure // kv.block_size > request.holding.committed:
            kv.promise(request.holding, request.tokens, sure, draft.committed)
        request.attention = request.next_attention(kv.block_size)
        return end == known

    def _allow(self, request: Request, num_tokens: int) -> int:
        for gate in self._gates:
            num_tokens = gate.allow(request, num_tokens)
            if num_tokens == HOLD:
                break
        return num_tokens

    def _spend(self, request: Request, num_tokens: int) -> None:
        for gate in self._gates:
            gate.spend(request, num_tokens)

    # --- results

    def update(self, plan: StepPlan, result: StepResult) -> Outputs:
        """Take the result of the oldest plan in flight. The result of a plan that was failed is passed over."""
        in_flight = self._in_flight
        if not in_flight or plan.step < in_flight[0][0].step:
            return Outputs()
        if plan.step != in_flight[0][0].step or result.step != plan.step:
            raise ValueError(f"result {result.step} of step {plan.step} came before that of {in_flight[0][0].step}")
        _, draft = in_flight.popleft()
        return Update(self.board).apply(draft, plan, result)

    def reached(self, plan: StepPlan) -> dict[str, int]:
        """For a plan in flight: each request in it, and how many of its tokens are computed after it."""
        for each, draft in self._in_flight:
            if each.step == plan.step:
                return {
                    request.id: start + count
                    for request, start, count in zip(draft.requests, plan.starts, plan.num_tokens)
                }
        return {}

    def retreat(self, plans: Sequence[StepPlan]) -> None:
        """These steps failed, and with them all planned after the first of them: it is as if they had never been.

        All that run are put back to wait with the tokens that are known of them; the blocks that the failed steps
        filled are forgotten.
        """
        first = min((plan.step for plan in plans), default=self._step + 1)
        lost = [draft for plan, draft in self._in_flight if plan.step >= first]
        self._in_flight = deque(entry for entry in self._in_flight if entry[0].step < first)
        for draft in lost:
            self.board.kv.uncommit(draft.committed)
            for request in draft.sampled.requests:
                request.known -= 1
                request.void = max(0, request.void - 1)
        self.set_aside()
        self.board.counters.failures += 1
