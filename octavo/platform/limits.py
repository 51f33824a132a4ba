"""How much memory and how many cores this process may use: the machine's, cut by cgroups and affinity.

A container's limits lie in the cgroup tree (kernel docs: admin-guide/cgroup-v1/memory and cgroup-v2), of which
each level up to the root may set one; the tightest counts. No torch.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a number near 2**63


def memory_limits(root: Path = Path("/")) -> tuple[int, int]:
    """Bytes ``(available, total)``: the machine's, or what the tightest cgroup leaves of them.

    Page cache that the kernel would drop counts as available. `root` stands before /proc and /sys (tests).
    """
    machine = psutil.virtual_memory()
    available, total = int(machine.available), int(machine.total)
    for limit, used in _memory_cgroups(root):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return available, total


def core_limit(root: Path = Path("/")) -> int:
    """Cores this process may keep busy: its affinity, or the cgroup's CPU quota rounded up, if that is less."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    for quota, period in _cpu_quotas(root):
        cores = min(cores, -(-quota // period))
    return max(1, cores)


def _memory_cgroups(root: Path) -> Iterator[tuple[int, int]]:
    """Pairs of limit and bytes in use that cannot be dropped, one a level."""
    for folder in _levels(root, ""):
        limit = _number(folder / "memory.max")
        if limit is not None:
            used = _number(folder / "memory.current") or 0
            yield limit, max(0, used - _stat(folder, "inactive_file"))
    for folder in _levels(root, "memory"):
        limit = _number(folder / "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED:
            used = _number(folder / "memory.usage_in_bytes") or 0
            yield limit, max(0, used - _stat(folder, "total_inactive_file"))


def _cpu_quotas(root: Path) -> Iterator[tuple[int, int]]:
    """Pairs of quota and period in microseconds, one a level that sets them."""
    for folder in _levels(root, ""):
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            yield int(words[0]), int(words[1])
    for folder in _levels(root, "cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period:
            yield quota, period


def _levels(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup, from its own up to the mount; the empty controller is v2's one tree.

    In a container the path in /proc may be seen from outside it and not exist here; the mount's top still does.
    """
    path = _cgroup_path(root, controller)
    if path is None:
        return
    base = root / "sys/fs/cgroup"
    tops = [base / controller] if controller else [base, base / "unified"]
    for top in tops:
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            folder = top.joinpath(*parts[:depth])
            if folder.is_dir():
                yield folder


def _cgroup_path(root: Path, controller: str) -> str | None:
    for line in _read(root / "proc/self/cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and (controller in fields[1].split(",") if controller else fields[0] == "0"):
            return fields[2]
    return None


def _stat(folder: Path, name: str) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    """The file's number; None when it is absent, negative, or says ``max``."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
