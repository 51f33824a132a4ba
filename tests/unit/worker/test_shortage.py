"""Memory that is short while serving: caches go, a step is tried the frugal way, captures end, nothing else does."""

import weakref
from types import SimpleNamespace

import pytest
import torch

from octavo.base.errors import EngineError
from octavo.worker.shortage import FrugalLauncher, forget_frames, short_of_memory

OOM = torch.OutOfMemoryError("CUDA out of memory")


class Platform:
    released = 0

    def release(self):
        self.released += 1


class Launcher:
    def __init__(self, errors=()):
        self.errors, self.launched, self.prepared = list(errors), 0, 0

    def launch(self, plan, *, whole):
        self.launched += 1
        if self.errors:
            raise self.errors.pop(0)
        return (plan, whole)

    def prepare(self):
        self.prepared += 1
        if self.errors:
            raise self.errors.pop(0)
        return True


def hidden():
    """What a capture that ran out of memory ends with."""
    try:
        try:
            raise OOM
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    except RuntimeError as error:
        return error


PLAN = SimpleNamespace(step=3)


@pytest.mark.parametrize(
    "error", [OOM, hidden(), MemoryError(), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling")]
)
def test_a_step_is_tried_once_more_without_captures(error):
    platform, first, eager = Platform(), Launcher([error]), Launcher()
    frugal = FrugalLauncher(platform, first, eager)
    assert frugal.launch(PLAN, whole=True) == (PLAN, True)
    assert (platform.released, first.launched, eager.launched) == (1, 1, 1)
    assert frugal.launch(PLAN, whole=False) == (PLAN, False)
    assert (platform.released, first.launched, eager.launched) == (1, 2, 1)


def test_other_errors_are_not_tried_again():
    platform, eager = Platform(), Launcher()
    frugal = FrugalLauncher(platform, Launcher([RuntimeError("a device-side assert")]), eager)
    with pytest.raises(RuntimeError, match="assert"):
        frugal.launch(PLAN, whole=False)
    assert (platform.released, eager.launched) == (0, 0)


def test_the_second_time_is_the_last():
    frugal = FrugalLauncher(Platform(), Launcher([OOM]), Launcher([OOM]))
    with pytest.raises(torch.OutOfMemoryError):
        frugal.launch(PLAN, whole=False)


def test_captures_end_when_memory_does():
    platform, first = Platform(), Launcher([])
    frugal = FrugalLauncher(platform, first, Launcher())
    assert frugal.prepare()
    first.errors = [hidden()]
    assert not frugal.prepare()
    first.errors = []
    assert not frugal.prepare()
    assert (first.prepared, platform.released) == (2, 1)
    first.errors = [ValueError("a fault")]
    with pytest.raises(ValueError):
        FrugalLauncher(platform, first, Launcher()).prepare()


def test_what_counts_as_a_shortage():
    wrapped = EngineError("step 1 failed")
    wrapped.__cause__ = OOM
    assert short_of_memory(wrapped)
    assert not short_of_memory(EngineError("step 1 failed"))
    assert not short_of_memory(None)


def test_a_failed_step_keeps_no_tensors_alive():
    def step():
        hidden_states = torch.zeros(4)
        alive.append(weakref.ref(hidden_states))
        raise torch.OutOfMemoryError("CUDA out of memory")

    alive = []
    wrapped = EngineError("step 1 failed")
    try:
        step()
    except torch.OutOfMemoryError as error:
        wrapped.__cause__ = error
    assert alive[0]() is not None
    forget_frames(wrapped)
    assert alive[0]() is None
