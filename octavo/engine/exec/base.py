"""Executor: how the engine reaches its workers. Forward and sample are two calls, so that work between them
(grammar masks) overlaps the device."""

from typing import Any, Protocol

from octavo.base.plan import StepPlan, StepResult
from octavo.base.specs import KVLayout


class Pending(Protocol):
    """A result that the device has not finished yet."""

    def result(self) -> StepResult:
        """Wait and give the result. Raises EngineError if the step failed."""
        ...

    def done(self) -> bool: ...


class Executor(Protocol):
    def kv_capacity(self) -> int:
        """Bytes that the KV cache may take, measured after the weights are in place."""
        ...

    def kv_dtype(self) -> str:
        """Type that the KV cache will have, as the configuration names types."""
        ...

    def start(self, layout: KVLayout) -> None:
        """Allocate the KV cache and the request table; the executor can take plans afterwards."""
        ...

    def forward(self, plan: StepPlan) -> None:
        """Enqueue the model's part of a step; returns before the device is done."""
        ...

    def sample(self, riders: dict[str, Any]) -> Pending:
        """Enqueue the sampling of the step last given to `forward`."""
        ...

    def prepare(self) -> bool:
        """Use a moment when no step is in flight to make later ones cheaper; True while there is more to do."""
        ...

    def shutdown(self) -> None: ...
