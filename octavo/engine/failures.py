"""What an exception from a step means: nothing but this step, a lack of memory, or the end of the device."""

from collections.abc import Iterator
from enum import Enum

MAX_CHAIN = 16

# A device assert or an illegal access leaves the process without a device: every later call fails too.
_DEVICE_TYPES = ("AcceleratorError",)
_DEVICE_TEXTS = ("cuda error", "device-side assert", "illegal memory access", "cudnn_status_execution_failed", "nccl")
_MEMORY_TYPES = ("OutOfMemoryError", "MemoryError")
_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed")


class Failure(Enum):
    """How far a failure reaches."""

    STEP = "step"  # this step; the next may go well
    MEMORY = "memory"  # a smaller step may go well
    DEVICE = "device"  # no step will


def classify(error: BaseException) -> Failure:
    """By type and text of the error and of what caused it; torch itself is not needed for that."""
    kinds = {_kind(each) for each in _chain(error)}
    for kind in (Failure.MEMORY, Failure.DEVICE):  # an allocation that fails is told as a device error too
        if kind in kinds:
            return kind
    return Failure.STEP


def _kind(error: BaseException) -> Failure:
    names, text = {each.__name__ for each in type(error).__mro__}, str(error)[:1000].lower()
    if not names.isdisjoint(_MEMORY_TYPES):
        return Failure.MEMORY
    told = isinstance(error, RuntimeError)
    if told and any(each in text for each in _MEMORY_TEXTS):
        return Failure.MEMORY
    if not names.isdisjoint(_DEVICE_TYPES) or (told and any(each in text for each in _DEVICE_TEXTS)):
        return Failure.DEVICE
    return Failure.STEP


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__
