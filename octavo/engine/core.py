"""The engine's loop body: receive, plan, forward, sample, update, send. Neither processes nor sockets nor torch."""

import logging
from collections.abc import Sequence

from octavo.base.errors import EngineDead, UserError
from octavo.base.wire import EngineRequest, EngineStats, StepOutputs, TokenOutput
from octavo.engine.exec.base import Executor
from octavo.engine.guard import Guard, let_in
from octavo.engine.overlap import Pipeline, StepFailed
from octavo.sched.scheduler import Scheduler

log = logging.getLogger(__name__)

FAILURE_LIMIT = 3
"""Failed steps in a row after which the device is given up."""

STEP_FAILED = "the engine could not finish this request; it may be sent again"


class Core:
    """A scheduler and an executor with up to `depth` steps between them."""

    def __init__(self, scheduler: Scheduler, executor: Executor, depth: int = 1, guard: Guard = let_in) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.failures = 0  # failed steps since the engine began
        self._guard = guard
        self._pipeline = Pipeline(executor, depth)
        self._failures_in_a_row = 0
        self._outbox: list[TokenOutput] = []

    @property
    def has_work(self) -> bool:
        """Whether `step` may have something to do or to say."""
        return bool(self._outbox or self._pipeline or self.scheduler.has_work)

    @property
    def stats(self) -> EngineStats:
        return self.scheduler.stats()

    def add(self, request: EngineRequest) -> None:
        """Queue a request; a refusal (queue full, can never fit) is an output of the next step."""
        try:
            self._guard(request)
            self.scheduler.add(request)
        except UserError as error:
            self._outbox.append(TokenOutput(request.id, [], "error", error=error.message, error_code=error.status))

    def abort(self, ids: Sequence[str]) -> None:
        """End requests; unknown ids are passed over. Their blocks are free before the next plan."""
        self._outbox += self.scheduler.abort(ids)

    def step(self) -> StepOutputs | None:
        """Keep the device fed, take the oldest result, say what came of it. None: nothing moved.

        Raises EngineDead when steps fail again and again.
        """
        while self._pipeline.has_room:
            plan = self.scheduler.plan()
            if plan is None:
                break
            self._pipeline.push(plan)
        moved = bool(self._pipeline)
        if moved:
            self._outbox += self._finish_oldest()
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
        self.executor.shutdown()

    def _finish_oldest(self) -> list[TokenOutput]:
        try:
            plan, result = self._pipeline.pop()
        except StepFailed as failure:
            return self._fail(failure)
        self._failures_in_a_row = 0
        return self.scheduler.update(plan, result)

    def _fail(self, failure: StepFailed) -> list[TokenOutput]:
        """The requests of the failed step, and of those that built on it, end; the rest go on."""
        self.failures += 1
        self._failures_in_a_row += 1
        log.error("%s", failure, exc_info=failure.cause)
        if self._failures_in_a_row >= FAILURE_LIMIT:
            raise EngineDead(f"{FAILURE_LIMIT} steps in a row failed; the last one: {type(failure.cause).__name__}")
        return self.scheduler.fail(failure.plans, STEP_FAILED)
