"""How much memory the KV cache may take, from measurement where the device counts, from limits where it does not."""

from collections.abc import Callable

import psutil
from msgspec import Struct

from octavo.base.config import CacheConfig, Resolved
from octavo.base.errors import NoRoom
from octavo.base.human import format_bytes
from octavo.base.specs import KVGroup, block_bytes
from octavo.platform.base import Platform
from octavo.platform.limits import memory_limits

CPU_SHARE = 0.25  # of the memory still free; the rest belongs to the step's own work and to other programs
CPU_SHARE_AT_MOST = 0.5  # where a single context needs more than that
CPU_MOST = 4 << 30  # a CPU is done with its steps long before more would be of use
RESERVE_SHARE = 0.01  # of a GPU's memory, kept for fragments and for what libraries take late
RESERVE_LEAST = 256 << 20


class Need(Struct, frozen=True):
    """Bytes that a running engine takes beside weights and KV cache."""

    step: int  # tensors of the largest step, and what stays between steps
    libraries: int  # what libraries take for themselves at their first call


def measure(platform: Platform, run_largest: Callable[[], None]) -> Need:
    """Run the largest step and see. `run_largest` allocates what a running engine keeps besides the KV cache."""
    platform.release()
    free_before, _ = platform.memory()
    base = platform.start_peak()
    run_largest()
    step = platform.peak() - base
    platform.release()
    free, _ = platform.memory()
    return Need(step, max(0, free_before - free))


def on_device(platform: Platform, cache: CacheConfig, need: Need, *, libraries_loaded: bool, free_at_start: int) -> int:
    """Bytes on a device that counts its memory: what is left beside weights and the largest step.

    `free_at_start`: bytes that were free before the weights came.
    """
    free, total = platform.memory()
    if not libraries_loaded:
        free -= need.libraries
    return share_out(total, free, free_at_start - free, need.step, cache.gpu_memory_utilization)


def share_out(total: int, free: int, ours: int, step: int, utilization: float) -> int:
    """Bytes for the KV cache of a device with `total` bytes, of which `free` are left and `ours` are taken by us.

    `utilization` bounds what this engine takes. What others hold only makes less free: it is not counted as ours.
    """
    reserve = max(RESERVE_LEAST, int(total * RESERVE_SHARE))
    budget = int(utilization * total) - max(0, ours)
    return max(0, min(budget, free - reserve) - step)


def check_host(wanted: int, what: str) -> None:
    """Raises NoRoom when the host cannot hold `wanted` bytes even with its swap: it would end the process later."""
    free = memory_limits()[0] + int(psutil.swap_memory().free)
    if wanted > free:
        raise NoRoom(
            f"{what} needs {format_bytes(wanted)}, {format_bytes(free)} of memory are free; free some, raise the "
            "container's limit, or take a smaller model"
        )


def on_host(platform: Platform, resolved: Resolved, groups: tuple[KVGroup, ...], dtype_bytes: int) -> int:
    """Bytes on a CPU, where nobody said how many: a share of what is free, within `CPU_MOST`, and no more than all rows
    at full length could use; but one row of the whole context if free memory has room for it."""
    free, _ = platform.memory()
    blocks_a_row = len(groups) * -(-(resolved.max_model_len + 1) // resolved.block_size)
    useful = (1 + resolved.max_num_seqs * blocks_a_row) * block_bytes(groups, resolved.block_size, dtype_bytes)
    one_row = (2 + blocks_a_row) * block_bytes(groups, resolved.block_size, dtype_bytes)
    wanted = max(min(int(free * CPU_SHARE), CPU_MOST), min(one_row, int(free * CPU_SHARE_AT_MOST)))
    return min(wanted, useful)
