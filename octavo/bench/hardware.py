"""What machine this is: facts for a report, and a short stable name for its folder of results. No torch."""

import platform
import re
import socket
import subprocess
from importlib import metadata
from pathlib import Path

from msgspec import Struct

from octavo.platform.limits import core_limit, memory_limits

ISA_FLAGS = ("amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "asimd")
"""Instruction sets that decide a CPU's speed at this work, best first."""


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU as its driver describes it. Memory in bytes."""

    name: str
    total_memory: int
    free_memory: int
    capability: tuple[int, int]


class Machine(Struct, frozen=True, kw_only=True):
    """Facts about this machine. Memory in bytes."""

    cpu: str
    cores: int  # that this process may use
    isa: list[str]  # of ISA_FLAGS, those it has
    memory: int  # of the machine, or what the container may take
    available: int  # of it, free to use now
    gpus: list[str]
    system: str

    @property
    def slug(self) -> str:
        """A stable folder name: ``nvidia-h200``, ``nvidia-h200-x4``, ``cpu-amd-epyc-2c-avx512``."""
        if self.gpus:
            count = f"-x{len(self.gpus)}" if len(self.gpus) > 1 else ""
            return slug(self.gpus[0]) + count
        width = "avx512" if "avx512f" in self.isa else self.isa[-1] if self.isa else platform.machine()
        return f"cpu-{slug(self.cpu)}-{self.cores}c-{slug(width)}"


def machine() -> Machine:
    """Look at this machine."""
    flags = _cpu_flags()
    available, total = memory_limits()
    return Machine(
        cpu=_cpu_name(),
        cores=core_limit(),
        isa=[flag for flag in ISA_FLAGS if flag in flags],
        memory=total,
        available=available,
        gpus=[gpu.name for gpu in gpus()] or _driver_gpus(),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )


def slug(name: str) -> str:
    """``"AMD EPYC 9B14 96-Core Processor"`` -> ``"amd-epyc-9b14"``."""
    name = re.sub(r"\((r|tm)\)|@.*|\d+-core.*|\b(cpu|processor)\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "unknown"


def version(package: str) -> str | None:
    """The installed version of a package; None where it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def gpus() -> list[Gpu]:
    """NVIDIA GPUs as the driver lists them; none without a driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free,compute_cap", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = found.stdout.splitlines() if found.returncode == 0 else []
    return [gpu for line in lines if (gpu := _gpu(line))]


def _driver_gpus() -> list[str]:
    """Names from the kernel driver, for containers without nvidia-smi."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    found = (re.search(r"^Model:\s*(.+)$", _read(str(path)), re.MULTILINE) for path in files)
    return [match[1].strip() for match in found if match]


def _gpu(line: str) -> Gpu | None:
    match = re.fullmatch(r"(.+), (\d+), (\d+), (\d+)\.(\d+)", line.strip())
    if match is None:
        return None
    name, total, free, major, minor = match.groups()
    return Gpu(
        name=name,
        total_memory=int(total) << 20,
        free_memory=int(free) << 20,
        capability=(int(major), int(minor)),
    )


def _cpu_name() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _cpu_flags() -> set[str]:
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return set(match[1].split()) if match else set()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
