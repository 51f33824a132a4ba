"""Executor: how the engine reaches its workers. Forward and sample are two calls, so that work between them
(grammar masks) overlaps the device."""

from collections.abc import Sequence
from typing import Any, Protocol

from octavo.base.config import Resolved
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

    def adopt(self, resolved: Resolved) -> None:
        """Take these settings instead, before `start`: smaller steps or a shorter context."""
        ...

    def kv_dtype(self) -> str:
        """Type that the KV cache will have, as the configuration names types."""
        ...

    def start(self, layout: KVLayout) -> None:
        """Allocate the KV cache and the request table; the executor can take plans afterwards."""
        ...

    def host_memory(self, length: int) -> Any:
        """An array of so many int32 from which riders reach the device in one copy."""
        ...

    def pin(self, array: Any) -> bool:
        """Have riders reach the device like that from an array that is there already; False: that cannot be."""
        ...

    def unpin(self, array: Any) -> None:
        """Undo that, no step being in flight."""
        ...

    def forward(self, plan: StepPlan) -> None:
        """Enqueue the model's part of a step; returns before the device is done."""
        ...

    def expect(self, plan: StepPlan) -> None:
        """The step that `forward` is given next, told while the one before is still to be sampled: what of it needs
        nothing from that may be prepared."""
        ...

    def sample(self, riders: dict[str, Any]) -> Pending:
        """Enqueue the sampling of the step last given to `forward`."""
        ...

    def prepare(self) -> bool:
        """Use a moment when no step is in flight to make later ones cheaper; True while there is more to do."""
        ...

    def sleep(self, level: int) -> int:
        """Give device memory back, no step being in flight: the KV cache, and the weights, whose contents level 1 keeps
        in host memory; how many bytes. Raises ConfigError, with nothing changed, where that cannot be."""
        ...

    def wake(self, tags: Sequence[str]) -> list[str]:
        """Bring the memory of these tags back (``weights``, ``kv_cache``); those still down.

        Raises MemoryError, ConfigError or ModelFileError, and may be called again.
        """
        ...

    def shutdown(self) -> None: ...
