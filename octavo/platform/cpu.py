"""The CPU: always there, runs in the caller's time, and its memory is shared with everything else."""

import platform as machine
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Generic

import numpy as np
import torch

from octavo.platform import host_memory
from octavo.platform.arena import TAGS, Arena, NoArena, TaggedMemory
from octavo.platform.base import Captured, Cut, Facts, T
from octavo.platform.limits import core_limit, memory_limits


class _Now:
    """The event of a device without a queue: it has always happened."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


_NOW = _Now()


class _Again(Generic[T]):
    """A CPU has nothing to capture: the work is done anew."""

    def __init__(self, work: Callable[[Cut], T]) -> None:
        self._work = work

    def replay(self) -> T:
        return self._work(lambda: None)


class _Stays:
    """Contents that were in host memory all along."""

    given = 0

    def bring_back(self) -> None:
        """They never went."""

    def forget(self) -> None:
        """They go with their tag."""


class CpuPlatform:
    """Platform over the host's own memory and cores. Copies are made at once and events have always happened."""

    name = "cpu"
    counts_memory = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    @staticmethod
    def missing() -> str:
        """Why it cannot be used; empty: it can."""
        return ""

    def facts(self) -> Facts:
        free, total = memory_limits()
        return Facts(
            device="cpu",
            name=_chip_name(),
            total_memory=total,
            free_memory=free,
            cores=core_limit(),
            dtypes=("float32", "bfloat16", "float16"),
            asynchronous=False,
        )

    def identity(self) -> str:
        return "cpu"

    def memory(self) -> tuple[int, int]:
        return memory_limits()

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Pages come from the kernel zeroed when first touched, so a large cache costs nothing until it is used."""
        data = np.zeros(max(1, prod(shape)) * dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(data).view(dtype)[: prod(shape)].view(shape)

    def arena(self) -> TaggedMemory:
        why_not = host_memory.missing()
        if why_not:
            return NoArena(self.device, why_not)
        arena = Arena(host_memory.HostBacking(), memory_limits()[1])
        try:
            arena.reserve(*TAGS)
        except MemoryError as error:  # a limit on addresses (ulimit -v), or a kernel that hands out no more than it has
            return NoArena(self.device, str(error))
        return arena

    def set_aside(self, memory: TaggedMemory, tag: str) -> _Stays:  # noqa: ARG002 - host memory is where they are
        return _Stays()

    def synchronize(self) -> None:
        return None

    def staging(self, length: int) -> torch.Tensor:
        return torch.zeros(length, dtype=torch.int32)

    def pin(self, host: torch.Tensor) -> bool:
        """All memory is as good."""
        del host
        return True

    def unpin(self, host: torch.Tensor) -> None:
        """It is as it was."""

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        return host.clone()

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def event(self) -> _Now:
        return _NOW

    def capture(
        self, work: Callable[[Cut], T], rehearse: Callable[[Callable[[], T]], object] | None = None
    ) -> Captured[T]:
        if rehearse is not None:
            rehearse(lambda: work(lambda: None))
        return _Again(work)

    def start_peak(self) -> int:
        return 0

    def peak(self) -> int:
        return 0

    def release(self) -> None:
        return None

    def trim(self) -> None:
        return None

    def prepare(self, threads: int) -> None:
        torch.set_num_threads(threads)


def _chip_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return machine.processor() or machine.machine()
