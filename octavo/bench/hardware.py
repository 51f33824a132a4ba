"""What machine this is: facts for a report, and a short stable name for its folder of results. No torch."""

import os
import platform
import re
import subprocess
from pathlib import Path

import psutil
from msgspec import Struct

ISA_FLAGS = ("amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "asimd")
"""Instruction sets that decide a CPU's speed at this work, best first."""


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
    limit = memory_limit()
    total, available = psutil.virtual_memory().total, psutil.virtual_memory().available
    if limit is not None and limit < total:
        total, available = limit, min(available, max(0, limit - memory_in_use()))
    return Machine(
        cpu=_cpu_name(),
        cores=usable_cores(),
        isa=[flag for flag in ISA_FLAGS if flag in flags],
        memory=total,
        available=available,
        gpus=_gpus(),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )


def slug(name: str) -> str:
    """``"AMD EPYC 9B14 96-Core Processor"`` -> ``"amd-epyc-9b14"``."""
    name = re.sub(r"\((r|tm)\)|@.*|\d+-core.*|\b(cpu|processor)\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "unknown"


def usable_cores() -> int:
    """Cores that affinity and the container's quota leave to this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def memory_limit() -> int | None:
    """Bytes that the container allows, None for no limit."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(path).strip()
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def memory_in_use() -> int:
    """Bytes that count against the container's limit now."""
    text = _read("/sys/fs/cgroup/memory.current").strip()
    return int(text) if text.isdigit() else 0


def _cpu_name() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _cpu_flags() -> set[str]:
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return set(match[1].split()) if match else set()


def _gpus() -> list[str]:
    """Names of NVIDIA GPUs as the driver lists them; none without a driver."""
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()] if found.returncode == 0 else []


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
