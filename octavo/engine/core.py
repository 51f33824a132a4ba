"""The engine's loop body: receive, plan, forward, sample, update, send. Neither processes nor sockets nor torch."""

import logging
from collections.abc import Sequence

from octavo.base.clock import Clock, SystemClock
from octavo.base.errors import EngineDead, UserError
from octavo.base.plan import StepPlan, StepResult
from octavo.base.wire import EngineRequest, EngineStats, StepOutputs, TokenOutput, Vocabulary
from octavo.engine.exec.base import Executor
from octavo.engine.guard import Guard, let_in
from octavo.engine.overlap import Pipeline, StepFailed
from octavo.engine.seat import NoSeat, Seat
from octavo.sched.finish import refused
from octavo.sched.scheduler import Scheduler

log = logging.getLogger(__name__)

FAILURE_LIMIT = 3
"""Failed steps in a row after which the device is given up."""

PATIENCE_S = 0.25
"""Time between two looks for requests that have waited too long."""

STEP_FAILED = "the engine could not finish this request; it may be sent again"


class Core:
    """A scheduler and an executor with up to `depth` steps between them."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        depth: int = 1,
        guard: Guard = let_in,
        clock: Clock = SystemClock(),  # noqa: B008 - it has no state
        seat: Seat | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.failures = 0  # failed steps since the engine began
        self._guard = guard
        self._seat: Seat = seat or NoSeat()
        self._pipeline = Pipeline(executor, depth, self._seat.riders, lambda: self._seat.in_turn)
        self._failures_in_a_row = 0
        self._outbox: list[TokenOutput] = []
        self._clock = clock
        self._look_again_s = 0.0

    @property
    def has_work(self) -> bool:
        """Whether `step` may have something to do or to say."""
        return bool(self._outbox or self._pipeline or self.scheduler.has_work or self._seat.holds)

    @property
    def stats(self) -> EngineStats:
        return self.scheduler.stats()

    def provide(self, vocabulary: Vocabulary) -> None:
        """What the tokens stand for, for features that must know."""
        self._seat.provide(vocabulary)

    def add(self, request: EngineRequest) -> None:
        """Queue a request; a refusal (queue full, can never fit) is an output of the next step."""
        try:
            self._guard(request)
            if not self._seat.hold(request):
                self.scheduler.add(request)
        except UserError as error:
            self._refuse(request, error)

    def abort(self, ids: Sequence[str]) -> None:
        """End requests; unknown ids are passed over. Their blocks are free before the next plan."""
        self._outbox += self._seat.drop(ids)
        self._say(self.scheduler.abort(ids))

    def step(self) -> StepOutputs | None:
        """Keep the device fed, take the oldest result, say what came of it. None: nothing moved.

        Raises EngineDead when steps fail again and again.
        """
        if self._seat.holds:
            self._take_in()
        now = self._clock.now()
        if now >= self._look_again_s:
            self._look_again_s = now + PATIENCE_S
            self._say(self.scheduler.give_up())
        while self._pipeline.has_room:
            plan = self.scheduler.plan()
            if plan is None:
                break
            self._pipeline.push(plan)
        moved = bool(self._pipeline)
        if moved:
            self._say(self._finish_oldest())
            self._pipeline.settle()
        if not moved and not self._outbox:
            return None
        outputs, self._outbox = self._outbox, []
        return StepOutputs(outputs, self.scheduler.stats())

    def prepare(self) -> bool:
        """Let the executor use a moment without work; True while it has more to do."""
        return not self.has_work and self.executor.prepare()

    def shutdown(self) -> None:
        """End the steps in flight and let the executor go."""
        self._pipeline.drain()
        self._seat.shutdown()
        self.executor.shutdown()

    def _finish_oldest(self) -> list[TokenOutput]:
        try:
            plan, result = self._pipeline.pop()
        except StepFailed as failure:
            return self._fail(failure)
        self._failures_in_a_row = 0
        return self._update(plan, result)

    def _update(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        review = self._seat.review(plan, result)
        if review is None:
            return self.scheduler.update(plan, result)
        outputs: list[TokenOutput] = []
        for id, message in review.failed.items():
            outputs += self.scheduler.reject([id], message)
        outputs += self.scheduler.update(plan, review.result)
        self.scheduler.amend(review.altered)
        return outputs

    def _take_in(self) -> None:
        """Held requests that are ready join the queue."""
        requests, outputs = self._seat.ready()
        self._outbox += outputs
        for request in requests:
            try:
                self.scheduler.add(request)
            except UserError as error:
                self._refuse(request, error)

    def _refuse(self, request: EngineRequest, error: UserError) -> None:
        if request.id in self.scheduler.board.requests:  # the one of this name that runs goes on
            self._outbox.append(refused(request.id, error))
        else:
            self._say([refused(request.id, error)])

    def _say(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            if output.finish is not None:
                self._seat.ended(output.id)
        self._outbox += outputs

    def _fail(self, failure: StepFailed) -> list[TokenOutput]:
        """The requests of the failed step, and of those that built on it, end; the rest go on."""
        self.failures += 1
        self._failures_in_a_row += 1
        log.error("%s", failure, exc_info=failure.cause)
        if self._failures_in_a_row >= FAILURE_LIMIT:
            raise EngineDead(f"{FAILURE_LIMIT} steps in a row failed; the last one: {type(failure.cause).__name__}")
        return self.scheduler.fail(failure.plans, STEP_FAILED)
