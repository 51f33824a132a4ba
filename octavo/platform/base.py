"""Platform: what the engine must know about, and ask of, the machine it runs on. No torch here.

One object a device. Everything above asks the platform and never tests for CUDA itself, so that the worker's
code is one for all devices: on a CPU the copies are plain and the events have always happened.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from octavo.platform.arena import TaggedMemory

if TYPE_CHECKING:
    import torch


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Cut = Callable[[], None]


class Facts(Struct, frozen=True, kw_only=True):
    """What start-up decides from. Bytes are bytes; no torch inside, so it may cross to any process."""

    device: str  # "cpu" or "cuda"
    name: str  # the chip, as its maker calls it
    total_memory: int
    free_memory: int
    cores: int  # CPU cores that this process may use
    dtypes: tuple[str, ...]  # fit for weights and activations, the preferred one first
    asynchronous: bool  # the device runs by itself while the host plans on
    capability: tuple[int, int] | None = None  # CUDA compute capability


class Event(Protocol):
    """A point in the device's queue of work."""

    def query(self) -> bool:
        """True once the device has passed the point."""
        ...

    def synchronize(self) -> None:
        """Wait until it has."""
        ...


class Aside(Protocol):
    """What a tag of an arena held, while its memory is given back."""

    given: int  # bytes of the device that went

    def bring_back(self) -> None:
        """Put memory and contents back where they were. Raises MemoryError, and may be called again."""
        ...

    def forget(self) -> None:
        """The contents will not be asked for."""
        ...


class Captured(Protocol[T_co]):
    """Device work that can be started again as a whole."""

    def replay(self) -> T_co:
        """Enqueue it. The result is the same tensors each time, or fresh ones where the platform cannot capture."""
        ...


class Platform(Protocol):
    """The device and its memory. `worker` calls these and nothing below them."""

    name: str
    device: "torch.device"
    counts_memory: bool  # `peak` tells what a step took

    def facts(self) -> Facts:
        """Facts as they stand now; free memory moves."""
        ...

    def identity(self) -> str:
        """The device's name and size, the same at every start."""
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes ``(free, total)`` that this process may still take, and has to share in all."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: "torch.dtype") -> "torch.Tensor":
        """Zeroed device memory for something large, such as the KV cache."""
        ...

    def arena(self) -> TaggedMemory:
        """Memory for what can be given back while the engine rests: weights and KV cache."""
        ...

    def set_aside(self, memory: TaggedMemory, tag: str) -> Aside:
        """Give a tag's memory back and keep its contents in host memory; where that is the device's own, nothing moves.

        Raises ConfigError, with nothing changed, if the host has no room.
        """
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all it was given."""
        ...

    def staging(self, length: int) -> "torch.Tensor":
        """Host memory ``[length]`` int32 from which `upload` need not wait."""
        ...

    def pin(self, host: "torch.Tensor") -> bool:
        """Make staging memory of host memory that is there already; False: that cannot be."""
        ...

    def unpin(self, host: "torch.Tensor") -> None:
        """Undo that, when no copy is under way."""
        ...

    def upload(self, host: "torch.Tensor") -> "torch.Tensor":
        """A device copy of staging memory, enqueued. The source must stay as it is until a later event."""
        ...

    def download(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """A host copy, enqueued; its content is there after a later event."""
        ...

    def event(self) -> Event:
        """Mark the present end of the device's queue."""
        ...

    def capture(
        self, work: "Callable[[Cut], T]", rehearse: "Callable[[Callable[[], T]], object] | None" = None
    ) -> "Captured[T]":
        """Run `work` once or twice, and keep it for replay. It must only enqueue, on tensors that stay in place. Where
        it calls what it is given, a replay lets the device begin before the host has got to the rest. `rehearse` runs
        it the first time, while nothing is captured."""
        ...

    def start_peak(self) -> int:
        """Forget the highest use of memory so far; gives the bytes in use now."""
        ...

    def peak(self) -> int:
        """Most bytes in use since `start_peak`. 0 where the platform does not count them."""
        ...

    def release(self) -> None:
        """Give cached device memory back, that of garbage too."""
        ...

    def trim(self) -> None:
        """Give cached device memory back at once, without looking for garbage."""
        ...

    def prepare(self, threads: int) -> None:
        """Called once in the worker's process, before any tensor: threads and the current device."""
        ...
