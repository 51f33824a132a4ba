"""The engine's loop body: receive, plan, forward, sample, update, send. Neither processes nor sockets nor torch."""

import logging
from collections.abc import Sequence

import msgspec

from octavo.base.clock import Clock, SystemClock
from octavo.base.errors import EngineDead, UserError
from octavo.base.plan import StepPlan, StepResult
from octavo.base.wire import EngineRequest, EngineStats, Outputs, StepOutputs, TokenOutput, Vocabulary
from octavo.engine.exec.base import Executor
from octavo.engine.failures import Failure, classify
from octavo.engine.guard import Guard, let_in
from octavo.engine.overlap import Pipeline, StepFailed
from octavo.engine.recovery import Recovery
from octavo.engine.rest import Rest
from octavo.engine.seat import NoSeat, Seat
from octavo.sched.finish import refused
from octavo.sched.scheduler import IN_USE, Scheduler

log = logging.getLogger(__name__)

PATIENCE_S = 0.25
"""Time between two looks for requests that have waited too long."""


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
        recovery: Recovery | None = None,
        rest: Rest | None = None,
    ) -> None:
        """`recovery`: the one whose gates the scheduler has."""
        self.scheduler = scheduler
        self.executor = executor
        self.rest = rest or Rest()
        self.failures = 0  # failed steps since the engine began
        self._guard = guard
        self._seat: Seat = seat or NoSeat()
        self._pipeline = Pipeline(executor, depth, self._seat.riders, lambda: self._seat.in_turn)
        self._recovery = recovery or Recovery()
        self._outbox: list[TokenOutput] = []
        self._held_since: dict[str, float] = {}  # what the seat holds back waits from here on, as in the queue
        self._clock = clock
        self._look_again_s = 0.0
        self._may_prepare = True

    @property
    def has_work(self) -> bool:
        """Whether `step` may have something to do or to say."""
        return bool(self._outbox or self._pipeline or self.scheduler.has_work or self._seat.holds)

    @property
    def stats(self) -> EngineStats:
        stats = self.scheduler.stats(self._seat.figures)
        return msgspec.structs.replace(stats, asleep=self.rest.level) if self.rest.level else stats

    def provide(self, vocabulary: Vocabulary) -> None:
        """What the tokens stand for, for features that must know."""
        self._seat.provide(vocabulary)

    def add(self, request: EngineRequest) -> None:
        """Queue a request; a refusal (queue full, can never fit) is an output of the next step."""
        if request.id in self.scheduler.board.requests or request.id in self._held_since:
            # Nobody is told that one of this name has ended: the one that has it goes on.
            self._outbox.append(refused(request.id, UserError(IN_USE, param="id")))
            return
        try:
            self._guard(request)
            if self._seat.hold(request):
                self._held_since[request.id] = self._clock.now()
            else:
                self.scheduler.add(request)
        except UserError as error:
            self._say([refused(request.id, error)])

    def abort(self, ids: Sequence[str]) -> None:
        """End requests; unknown ids are passed over. Their blocks are free before the next plan."""
        for output in self._seat.drop(ids):
            self._held_since.pop(output.id, None)
            self._outbox.append(output)
        self._say(self.scheduler.abort(ids))

    def step(self) -> StepOutputs | None:
        """Keep the device fed, take the oldest result, say what came of it. None: nothing moved.

        Raises EngineDead when the device is gone, or steps fail whoever is in them.
        """
        if self._seat.holds:
            self._take_in()
        now = self._clock.now()
        if now >= self._look_again_s:
            self._look_again_s = now + PATIENCE_S
            self._say(self.scheduler.give_up())
        self._feed()
        moved = bool(self._pipeline)
        step = self._finish_oldest() if moved else Outputs()
        self._say(step.outputs)
        # Planned while the device computes the newest step, begun as soon as that is sampled and before anybody is told
        # of the tokens: that takes the host as long as the sampling the device.
        ahead = self.scheduler.plan() if moved and self._pipeline.will_starve else None
        try:
            if ahead is not None:
                self._pipeline.expect(ahead)
            self._pipeline.settle()
        finally:  # what is planned has to be begun, whatever interrupts
            if ahead is not None:
                self._pipeline.push(ahead)
        if not moved and not self._outbox and not self.rest.news:
            return None
        outputs, self._outbox = self._outbox, []
        self.rest.news = False
        return StepOutputs(outputs, step.ids, step.tokens, step.logprobs, stats=self.stats)

    def _feed(self) -> None:
        """Plan steps as far as the pipeline takes them."""
        while self._pipeline.has_room:
            plan = self.scheduler.plan()
            if plan is None:
                break
            self._pipeline.push(plan)

    def set_aside(self) -> None:
        """End the steps in flight, and let what runs wait to be computed anew."""
        while self._pipeline:
            self._say(self._finish_oldest().each())
            self._pipeline.settle()
        self.scheduler.set_aside()

    def prepare(self) -> bool:
        """Let the executor use a moment without work; True while it has more to do."""
        if self.has_work:
            return False
        if self._may_prepare and self._prepare_executor():
            return True
        self._seat.prepare()
        return False

    def _prepare_executor(self) -> bool:
        try:
            return self.executor.prepare()
        except Exception as error:
            if classify(error) is Failure.DEVICE:
                raise EngineDead(f"the device failed: {type(error).__name__}") from error
            log.error("later steps are not made cheaper", exc_info=error)
            self._may_prepare = False
            return False

    def shutdown(self) -> None:
        """End the steps in flight and let the executor go."""
        self._pipeline.drain()
        self._seat.shutdown()
        self.executor.shutdown()

    def _finish_oldest(self) -> Outputs:
        try:
            plan, result = self._pipeline.pop()
        except StepFailed as failure:
            return Outputs(self._fail(failure))
        if self._recovery.alert:
            self._recovery.went_well(self.scheduler.reached(plan))
        return self._update(plan, result)

    def _update(self, plan: StepPlan, result: StepResult) -> Outputs:
        review = self._seat.review(plan, result)
        if review is None:
            return self.scheduler.update(plan, result)
        for id, error in review.failed.items():
            self._say(self.scheduler.reject([id], error))
        step = self.scheduler.update(plan, review.result)
        self.scheduler.amend(review.altered)
        return step

    def _take_in(self) -> None:
        """Held requests that are ready join the queue."""
        requests, outputs = self._seat.ready()
        for output in outputs:
            self._held_since.pop(output.id, None)
        self._outbox += outputs
        for request in requests:
            since = self._held_since.pop(request.id)
            try:
                self.scheduler.add(request)
                self.scheduler.board.requests[request.id].arrived_s = since
            except UserError as error:
                self._say([refused(request.id, error)])

    def _say(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            if output.finish is not None:
                self._seat.ended(output.id)
                self._recovery.ended(output.id)
        self._outbox += outputs

    def _fail(self, failure: StepFailed) -> list[TokenOutput]:
        """Back to before the failed step, without the requests that are known to be at fault."""
        self.failures += 1
        log.error("%s", failure, exc_info=failure.cause)
        plan, cause = failure.plans[0], failure.cause
        reached = self.scheduler.reached(plan)
        guilty = self._recovery.failed(classify(cause), reached, plan.total_tokens, type(cause).__name__)
        self.scheduler.retreat(failure.plans)
        outputs: list[TokenOutput] = []
        for id, message in guilty.items():
            outputs += self.scheduler.reject([id], message)
        return outputs
