"""How much memory the KV cache may take, from measurement where the device counts, from limits where it does not."""

from collections.abc import Callable

from msgspec import Struct

from octavo.base.config import CacheConfig, Resolved
from octavo.base.specs import KVGroup, block_bytes
from octavo.platform.base import Platform

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


def on_device(platform: Platform, cache: CacheConfig, need: Need, *, libraries_loaded: bool) -> int:
    """Bytes on a device that counts its memory: what utilization leaves beside weights and the largest step."""
    free, total = platform.memory()
    if not libraries_loaded:
        free -= need.libraries
    reserve = max(RESERVE_LEAST, int(total * RESERVE_SHARE))
    share = int(cache.gpu_memory_utilization * total) - (total - free)
    return max(0, min(share - need.step, free - need.step - reserve))


def on_host(platform: Platform, resolved: Resolved, groups: tuple[KVGroup, ...], dtype_bytes: int) -> int:
    """Bytes on a CPU, where nobody said how many: a share of what is free, within `CPU_MOST`, and no more than all rows
    at full length could use; but one row of the whole context if free memory has room for it."""
    free, _ = platform.memory()
    blocks_a_row = len(groups) * -(-(resolved.max_model_len + 1) // resolved.block_size)
    useful = (1 + resolved.max_num_seqs * blocks_a_row) * block_bytes(groups, resolved.block_size, dtype_bytes)
    one_row = (2 + blocks_a_row) * block_bytes(groups, resolved.block_size, dtype_bytes)
    wanted = max(min(int(free * CPU_SHARE), CPU_MOST), min(one_row, int(free * CPU_SHARE_AT_MOST)))
    return min(wanted, useful)
