"""What the worker does when the device has no memory for a step: give caches back, and try the frugal way once.

A step that fails even then ends as an error of its own; the engine goes on with smaller ones.
"""

import logging
import traceback

import torch

from octavo.base.plan import StepPlan
from octavo.platform.base import Platform
from octavo.worker.launch import Launched, Launcher

log = logging.getLogger(__name__)

_MAX_CHAIN = 8
_TEXT = "CUBLAS_STATUS_ALLOC_FAILED"  # a library's own allocation is no OutOfMemoryError


def short_of_memory(error: BaseException | None) -> bool:
    """Whether a lack of memory is at the bottom of this: an error on the way out of a capture hides it."""
    for _ in range(_MAX_CHAIN):
        if error is None:
            return False
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or _TEXT in str(error)[:1000]:
            return True
        error = error.__cause__ or error.__context__
    return False


def forget_frames(error: BaseException | None) -> None:
    """Let go of the tensors that an error's traceback holds, so that their memory can be given back."""
    for _ in range(_MAX_CHAIN):
        if error is None:
            return
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class FrugalLauncher:
    """A launcher that falls back to another, which captures nothing, when memory is short."""

    def __init__(self, platform: Platform, launcher: Launcher, eager: Launcher) -> None:
        self._platform = platform
        self._launcher = launcher
        self._eager = eager
        self._full = False

    def expect(self, plan: StepPlan) -> None:
        self._launcher.expect(plan)

    def launch(self, plan: StepPlan, *, whole: bool) -> Launched:
        """A launch only writes what it would write again, so it may be repeated."""
        try:
            return self._launcher.launch(plan, whole=whole)
        except Exception as error:
            if not short_of_memory(error):
                raise
            log.warning("memory was short in step %d; caches were given back, it is tried once more", plan.step)
        self._platform.release()
        return self._eager.launch(plan, whole=whole)

    def prepare(self) -> bool:
        """Captures ahead until memory is short; what there is then has to do."""
        if self._full:
            return False
        try:
            return self._launcher.prepare()
        except Exception as error:
            if not short_of_memory(error):
                raise
            log.warning("no memory is left for further captured steps; larger ones run uncaptured")
            self._full = True
        self._platform.release()
        return False
