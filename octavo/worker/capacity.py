"""How much memory the KV cache may take, from measurement where the device counts, from limits where it does not."""

from collections.abc import Callable

from octavo.base.config import CacheConfig, Resolved
from octavo.base.specs import KVGroup, block_bytes
from octavo.platform.base import Platform

CPU_SHARE = 0.5  # of the memory still free; the rest belongs to the step's own work and to other programs
RESERVE_SHARE = 0.01  # of a GPU's memory, kept for fragments and for what libraries take late
RESERVE_LEAST = 256 << 20


def on_device(platform: Platform, cache: CacheConfig, run_largest: Callable[[], None]) -> int:
    """Bytes on a device that counts its memory: what utilization leaves beside weights and the largest step.

    `run_largest` runs that step, and allocates what a running engine keeps besides the KV cache.
    """
    platform.release()
    free_before, total = platform.memory()
    base = platform.start_peak()
    run_largest()
    extra = platform.peak() - base
    platform.release()
    # What libraries took during the step is no tensor and stays.
    free, _ = platform.memory()
    free = min(free, free_before)
    used = total - free
    reserve = max(RESERVE_LEAST, int(total * RESERVE_SHARE))
    return max(0, min(int(cache.gpu_memory_utilization * total) - used - extra, free - extra - reserve))


def on_host(platform: Platform, resolved: Resolved, groups: tuple[KVGroup, ...], dtype_bytes: int) -> int:
    """Bytes on a CPU: a share of what is free, and no more than all rows at full length could use."""
    free, _ = platform.memory()
    blocks_a_row = len(groups) * -(-(resolved.max_model_len + 1) // resolved.block_size)
    useful = (1 + resolved.max_num_seqs * blocks_a_row) * block_bytes(groups, resolved.block_size, dtype_bytes)
    return min(int(free * CPU_SHARE), useful)
