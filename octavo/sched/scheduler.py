"""The scheduler: which tokens to compute next. The one loop of the plan side.

There is no prefill and no decode: each step lets every request's computed tokens chase its known ones, running
requests first, then waiting ones, as far as the gates and the KV cache allow.

`plan` may be called before the results of earlier plans are in. A request then counts one token as known for each
step in flight that will sample it; the device finds that token where the earlier step left it. No step is planned
past `max_tokens` or the context.

Why some request always advances: `running` is sorted, later ones are preempted for the sake of earlier ones, and
`add` refuses what would not fit alone. So the first running request gets a token in every plan, unless its last
token is on the way already. If none runs, all blocks are free and the first waiting request starts.
"""

from collections import deque
from collections.abc import Callable, Sequence

from octavo.base.clock import Clock, SystemClock
from octavo.base.errors import UserError
from octavo.base.plan import StepPlan, StepResult
from octavo.base.specs import KVLayout
from octavo.base.wire import EngineRequest, EngineStats, TokenOutput
from octavo.kv.capacity import longest_alone
from octavo.kv.holding import Grant
from octavo.sched.board import Board
from octavo.sched.draft import Draft
from octavo.sched.finish import ended, refused
from octavo.sched.gates import Gate, RowPool, standard_gates
from octavo.sched.limits import Limits
from octavo.sched.queue import order_of, waited_too_long
from octavo.sched.request import Request
from octavo.sched.update import Update

MAX_SALT_CHARS = 1024  # it is hashed on the engine's thread


def given_salt(wire: EngineRequest) -> str:
    """Requests share blocks of equal prefixes if their callers gave equal salts."""
    return wire.cache_salt


class Scheduler:
    """Owns all requests from `add` until their last output."""

    def __init__(
        self,
        layout: KVLayout,
        limits: Limits,
        gates: Callable[[Limits, RowPool], list[Gate]] = standard_gates,
        salt: Callable[[EngineRequest], str] = given_salt,
        clock: Clock = SystemClock(),  # noqa: B008 - it has no state
    ) -> None:
        order_of(limits, 0, 0)  # an unknown policy fails here, not at the first request
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
        self._check(wire)
        order = order_of(self._limits, wire.priority, self._arrivals)
        self.board.waiting.check_room(len(wire.tokens))
        self._arrivals += 1
        holding = self.board.kv.hold(self._salt(wire))
        request = Request(wire, order, holding, self._limits.max_model_len)
        self.board.enter(request)

    def abort(self, ids: Sequence[str]) -> list[TokenOutput]:
        """End these requests, whatever they are doing. Unknown ids are passed over: they may just have ended."""
        requests = [self.board.requests[id] for id in dict.fromkeys(ids) if id in self.board.requests]
        return self._end(requests, "abort")

    def reject(self, ids: Sequence[str], message: str) -> list[TokenOutput]:
        """End these requests with an error that says `message`. Unknown ids are passed over."""
        requests = [self.board.requests[id] for id in dict.fromkeys(ids) if id in self.board.requests]
        return self._end(requests, "error", message)

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
        return [refused(request.id, waited_too_long(request.max_wait_s)) for request in late]

    def stats(self) -> EngineStats:
        """Gauges now, and counters since the beginning."""
        return self.board.stats()

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        self.board.kv.forget_prefixes()

    def _check(self, wire: EngineRequest) -> None:
        limits, num_prompt = self._limits, len(wire.tokens)
        if wire.id in self.board.requests:
            raise UserError("a request with this id is running already", param="id")
        if num_prompt == 0:
            raise UserError("the prompt is empty", param="prompt")
        if num_prompt >= limits.max_model_len:
            raise UserError(
                f"the prompt has {num_prompt} tokens; with at least one token of output the context of "
                f"{limits.max_model_len} is too short for it",
                param="prompt",
                code="context_length_exceeded",
            )
        if limits.vocab_size is not None and not 0 <= min(wire.tokens) <= max(wire.tokens) < limits.vocab_size:
            raise UserError(f"token ids must be between 0 and {limits.vocab_size - 1}", param="prompt")
        if len(wire.cache_salt) > MAX_SALT_CHARS:
            raise UserError(f"cache_salt may have at most {MAX_SALT_CHARS} characters", param="cache_salt")
        # The last token is never computed.
        longest = min(num_prompt + max(1, wire.sampling.max_tokens), limits.max_model_len) - 1
        if longest > self._longest:
            param = "prompt" if num_prompt > self._longest else "max_tokens"
            raise UserError(
                f"prompt and max_tokens need room for {longest} tokens; the KV cache holds {self._longest}",
                param=param,
                code="kv_cache_exceeded",
            )

    def _end(self, requests: Sequence[Request], finish: str, error: str | None = None) -> list[TokenOutput]:
        for request in requests:
            self.board.end(request)
        if requests:
            self.board.sweep()
        return [ended(request, finish, error) for request in requests]

    # --- the loop

    def plan(self) -> StepPlan | None:
        """The next step, or None if nothing can be computed now: no work, or all of it waits for results."""
        board = self.board
        draft = Draft()
        for gate in self._gates:
            gate.open(len(board.running))
        before = board.counters.preemptions
        self._plan_running(draft)
        if board.counters.preemptions == before:
            self._plan_waiting(draft)
        if not draft.rows:
            return None
        self._step += 1
        board.counters.steps += 1
        plan = draft.plan(self._step, board.rows.take_dropped())
        self._in_flight.append((plan, draft))
        return plan

    def _plan_running(self, draft: Draft) -> None:
        """Every running request gets a token at least, in order; the last ones may be preempted for the first."""
        rows, counts, starts = draft.rows, draft.counts, draft.starts
        sample, requests, sampled = draft.sample, draft.requests, draft.sampled
        for request in self.board.running:  # may lose its tail meanwhile
            start, known = request.computed, request.known
            if known - start == 1 and known < request.horizon:
                sample.append(len(rows))
                rows.append(request.row)
                counts.append(1)
                starts.append(start)
                requests.append(request)
                sampled.append(request)
                request.computed = known
                request.known = known + 1
            elif known < request.limit:
                self._advance(request, draft)

    def _advance(self, request: Request, draft: Draft) -> None:
        """A running request that needs more blocks, or has more than one token to compute."""
        if request.torn and request.in_flight:
            return
        want = request.known - request.computed
        extra = self._allow(request, want - 1) if want > 1 else 0
        grant = self._reserve(request, 1 + extra)
        if grant is None:
            return
        if grant.num_tokens > 1:
            self._spend(request, grant.num_tokens - 1)
        if request.torn:
            self.board.rows.redo(request.row)
            draft.add_row(request)
        else:
            draft.add_blocks(request, grant)
        self._compute(request, grant, draft)

    def _reserve(self, request: Request, want: int) -> Grant | None:
        """Room for up to `want` tokens, if need be from those last in order; None if it was last itself."""
        board = self.board
        while True:
            grant = board.kv.reserve(request.holding, request.computed, want)
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
        spare = self._spare() if board.running else 0
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
        self._compute(request, grant, draft)
        return True

    def _spare(self) -> int:
        """Blocks left free for those who run, so that a newcomer is not preempted at once: one a table, within a
        twentieth of the cache."""
        kv = self.board.kv
        return min(len(self.board.running) * kv.num_groups, kv.num_blocks // 20)

    def _compute(self, request: Request, grant: Grant, draft: Draft) -> None:
        """Plan the granted tokens; the blocks they fill can be found from now on."""
        board = self.board
        start = request.computed
        if start < request.num_prompt:
            board.counters.prompt_tokens += min(request.num_prompt, start + grant.num_tokens) - start
        draft.advance(request, grant.num_tokens)
        request.set_horizon()
        known = min(request.computed, len(request.tokens))
        if known // board.kv.block_size > request.holding.committed:
            draft.committed += board.kv.commit(request.holding, request.tokens, known)
        request.set_attention(board.kv.block_size)

    def _allow(self, request: Request, num_tokens: int) -> int:
        for gate in self._gates:
            num_tokens = gate.allow(request, num_tokens)
        return num_tokens

    def _spend(self, request: Request, num_tokens: int) -> None:
        for gate in self._gates:
            gate.spend(request, num_tokens)

    # --- results

    def update(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """Take the result of the oldest plan in flight. The result of a plan that was failed is passed over."""
        in_flight = self._in_flight
        if not in_flight or plan.step < in_flight[0][0].step:
            return []
        if plan.step != in_flight[0][0].step or result.step != plan.step:
            raise ValueError(f"result {result.step} of step {plan.step} came before that of {in_flight[0][0].step}")
        _, draft = in_flight.popleft()
        update = Update(self.board)
        update.apply(draft, plan, result)
        return update.outputs

    def fail(self, plans: Sequence[StepPlan], message: str) -> list[TokenOutput]:
        """These steps failed, and with them all planned after the first of them.

        Ends the requests that were in them with an error that says `message`, and forgets the blocks they filled.
        All others go on.
        """
        first = min((plan.step for plan in plans), default=self._step + 1)
        lost = [entry for entry in self._in_flight if entry[0].step >= first]
        self._in_flight = deque(entry for entry in self._in_flight if entry[0].step < first)
        requests: dict[str, Request] = {}
        for _, draft in lost:
            self.board.kv.uncommit(draft.committed)
            requests.update((request.id, request) for request in draft.requests)
        alive = [request for id, request in requests.items() if self.board.requests.get(id) is request]
        return self._end(alive, "error", message)
