"""Seat: a feature's place in the engine's loop. The core asks it at fixed points and never what it is.

A request may be held back until it is ready (the others pass it), a step may get something to sample with, and a
result may be altered before anyone has seen it.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from octavo.base.errors import UserError
from octavo.base.plan import StepPlan, StepResult
from octavo.base.wire import EngineRequest, TokenOutput, Vocabulary


class Seat(Protocol):
    """All calls come from the engine's thread."""

    @property
    def holds(self) -> bool:
        """Whether any request is held back."""
        ...

    @property
    def in_turn(self) -> bool:
        """Whether the riders of a step depend on the results of those before it."""
        ...

    @property
    def figures(self) -> dict[str, float]:
        """Its own counters, by name; they go out with the figures of each step."""
        ...

    def provide(self, vocabulary: Vocabulary) -> None:
        """What the tokens stand for. Comes once, if at all."""
        ...

    def prepare(self) -> None:
        """A moment without work, when the device has no use for one."""
        ...

    def hold(self, request: EngineRequest) -> bool:
        """Keep a newcomer until it is ready; False: it may go on at once. Raises UserError for one that never may."""
        ...

    def ready(self) -> tuple[list[EngineRequest], list[TokenOutput]]:
        """Requests held so far that may go on, and last outputs of those that may not."""
        ...

    def drop(self, ids: Sequence[str]) -> list[TokenOutput]:
        """Forget held requests that were aborted; their last outputs."""
        ...

    def riders(self, plan: StepPlan) -> dict[str, Any]:
        """What goes to `Executor.sample` with this plan. The device works on the step meanwhile."""
        ...

    def review(self, plan: StepPlan, result: StepResult) -> "Review | None":
        """What is to change about a result. None: nothing."""
        ...

    def ended(self, id: str) -> None:
        """A request has had its last output."""
        ...

    def shutdown(self) -> None: ...


class Review:
    """A result to take instead of the device's own."""

    __slots__ = ("altered", "failed", "result")

    def __init__(self, result: StepResult, altered: list[str], failed: dict[str, UserError]) -> None:
        self.result = result
        self.altered = altered  # ids of requests whose token is not the device's
        self.failed = failed  # ids of requests that cannot go on, by their own fault, and why


class NoSeat:
    """No feature."""

    holds = False
    figures: ClassVar[dict[str, float]] = {}
    in_turn = False

    def provide(self, vocabulary: Vocabulary) -> None:
        """Nobody asks."""

    def prepare(self) -> None:
        """There is nothing to make ready."""

    def hold(self, request: EngineRequest) -> bool:
        del request
        return False

    def ready(self) -> tuple[list[EngineRequest], list[TokenOutput]]:
        return [], []

    def drop(self, ids: Sequence[str]) -> list[TokenOutput]:
        del ids
        return []

    def riders(self, plan: StepPlan) -> dict[str, Any]:
        del plan
        return {}

    def review(self, plan: StepPlan, result: StepResult) -> Review | None:
        del plan, result
        return None

    def ended(self, id: str) -> None:
        """Nothing is kept."""

    def shutdown(self) -> None:
        """Nothing runs."""
