"""Steps in flight: up to `depth` plans are on their way to the device, results come back in order.

Depth 1 is synchronous operation of the same code. Where sampling needs what the step before has brought, a step is
computed at once and sampled only when that result has been taken in: the device works on it meanwhile.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.base.errors import EngineError
from octavo.base.plan import StepPlan, StepResult
from octavo.engine.exec.base import Executor, Pending


class StepFailed(EngineError):
    """A step raised. `plans` are that step's and all those behind it, which built on its tokens and blocks."""

    def __init__(self, plans: list[StepPlan], cause: Exception) -> None:
        super().__init__(f"step {plans[0].step} failed: {type(cause).__name__}")
        self.plans = plans
        self.cause = cause


@dataclass(frozen=True, slots=True)
class _Broken:
    """The result of a step that could not even be enqueued."""

    cause: Exception
    rest: Pending | None = None  # what the device does all the same

    def result(self) -> StepResult:
        if self.rest is not None:
            with contextlib.suppress(Exception):
                self.rest.result()
        raise self.cause

    def done(self) -> bool:
        return True


Riders = Callable[[StepPlan], dict[str, Any]]
"""Called between `forward` and `sample` of a step, while the device computes; gives what `sample` takes along."""


def no_riders(plan: StepPlan) -> dict[str, Any]:
    """Nothing to take along."""
    del plan
    return {}


def never() -> bool:
    """No sampling needs an earlier result."""
    return False


class Pipeline:
    """A queue of plans that the executor has and whose results are still to be taken."""

    def __init__(
        self, executor: Executor, depth: int, riders: Riders = no_riders, in_turn: Callable[[], bool] = never
    ) -> None:
        """`in_turn`: whether the riders of a step can be told only when the steps before it have been taken in."""
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.depth = depth
        self._executor = executor
        self._riders = riders
        self._in_turn = in_turn
        self._flying: deque[tuple[StepPlan, Pending]] = deque()
        self._computing: StepPlan | None = None  # the newest step, where it is still to be sampled

    def __len__(self) -> int:
        return len(self._flying) + (self._computing is not None)

    @property
    def has_room(self) -> bool:
        return len(self) < self.depth and self._computing is None

    @property
    def will_starve(self) -> bool:
        """Whether the device has only a sampling left to do once the newest step is computed: steps are taken in turn,
        and there is room for the next."""
        return not self._flying and len(self) < self.depth and self._in_turn()

    def expect(self, plan: StepPlan) -> None:
        """Tell of the step that is pushed next, if the newest one is still to be sampled."""
        if self._computing is not None:
            self._executor.expect(plan)

    def push(self, plan: StepPlan) -> None:
        """Enqueue a step. Its failure, even an immediate one, comes out of `pop`."""
        try:
            self._executor.forward(plan)
        except Exception as error:
            self._flying.append((plan, _Broken(error)))
            return
        except BaseException:
            self._flying.append((plan, _Broken(EngineError("the step was interrupted"))))
            raise
        self._computing = plan
        self.settle()

    def settle(self) -> None:
        """Enqueue the sampling of the newest step, unless that is done or has to wait for a result before it."""
        if not self._flying or not self._in_turn():
            self._sample()

    def _sample(self) -> None:
        plan, self._computing = self._computing, None
        if plan is None:
            return
        try:
            self._flying.append((plan, self._ask(plan)))
        except Exception as error:
            self._flying.append((plan, _Broken(error)))
        except BaseException:
            self._flying.append((plan, _Broken(EngineError("the step was interrupted"))))
            raise

    def _ask(self, plan: StepPlan) -> Pending:
        try:
            riders = self._riders(plan)
        except Exception as error:
            return _Broken(error, self._executor.sample({}))  # each forward has its sample
        return self._executor.sample(riders)

    def pop(self) -> tuple[StepPlan, StepResult]:
        """Wait for the oldest step. Raises StepFailed after the steps behind a failed one have ended too."""
        plan, pending = self._flying[0]  # stays there if the wait is interrupted
        try:
            result = pending.result()
        except Exception as error:
            self._flying.popleft()
            raise StepFailed([plan, *self.drain()], error) from error
        self._flying.popleft()
        return plan, result

    def drain(self) -> list[StepPlan]:
        """Wait for all steps, whatever comes of them, and give their plans."""
        plans = []
        self._sample()
        while self._flying:
            plan, pending = self._flying.popleft()
            plans.append(plan)
            try:
                pending.result()
            except Exception:
                continue  # it built on a step that failed already; the first cause is the one to tell
        return plans
