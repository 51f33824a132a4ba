"""What this machine is, as data: the rules of engine/resolve.py read it and tests write it. No torch unless a GPU
may be there."""

import os
from pathlib import Path

from msgspec import Struct


class PlatformFacts(Struct, frozen=True, kw_only=True):
    """Facts that decide defaults. Memory is in bytes."""

    cores: int  # that this process may use
    cuda: bool = False
    no_cuda_reason: str = "this machine has no CUDA device"
    gpu_name: str = ""
    gpu_memory: int = 0
    gpu_capability: tuple[int, int] = (0, 0)


def probe(device: str = "auto") -> PlatformFacts:
    """Look at the machine. With device "cpu" no GPU is looked for."""
    cores = usable_cores()
    if device == "cpu":
        return PlatformFacts(cores=cores, no_cuda_reason="a CPU was asked for")
    if not _driver_present():
        return PlatformFacts(cores=cores)
    import torch

    if not torch.backends.cuda.is_built():
        return PlatformFacts(cores=cores, no_cuda_reason="the installed torch was built without CUDA")
    if not torch.cuda.is_available():
        return PlatformFacts(cores=cores, no_cuda_reason="torch finds no usable CUDA device")
    found = torch.cuda.get_device_properties(0)
    return PlatformFacts(
        cores=cores,
        cuda=True,
        gpu_name=found.name,
        gpu_memory=found.total_memory,
        gpu_capability=(found.major, found.minor),
    )


def usable_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that affinity and the container's quota leave to this process, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, _, period = cpu_max.read_text().partition(" ")
        if quota != "max":
            cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        pass
    return max(1, cores)


def _driver_present() -> bool:
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/proc/driver/nvidia"))
