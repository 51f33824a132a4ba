"""An arena's backing on a CPU: one anonymous mapping a range, whose pages the kernel gives when they are touched."""

import contextlib
import ctypes
import mmap
import sys

import torch

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux, asm-generic/mman.h: addresses alone cost no memory


def missing() -> str:
    """Why there is no such backing here; empty: there is."""
    return "" if sys.platform == "linux" else "the system has no way to empty a mapping in place"


class HostBacking:
    """Backing whose `unmap` empties pages (MADV_DONTNEED): they read as zeros and cost nothing until touched again."""

    granularity = mmap.PAGESIZE
    zeroed = True

    def __init__(self) -> None:
        self._ranges: dict[int, mmap.mmap] = {}

    def reserve(self, size: int) -> int:
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            made = mmap.mmap(-1, size, flags=flags)
        except (OSError, ValueError) as error:
            raise MemoryError(f"no room for {size} bytes of addresses: {error}") from None
        ask_for_large_pages(made)
        address = ctypes.addressof(ctypes.c_char.from_buffer(made))
        self._ranges[address] = made
        return address

    def map(self, address: int, size: int) -> None:
        """The pages come by themselves."""

    def unmap(self, address: int, size: int) -> int:
        start, owner = self._owner(address)
        there = _resident(address, size)
        owner.madvise(mmap.MADV_DONTNEED, address - start, size)
        return there

    def free(self, address: int, size: int) -> None:  # noqa: ARG002 - the mapping goes as a whole
        # Tensors may still hold the mapping; it goes with the last of them.
        del self._ranges[address]

    def view(self, address: int, nbytes: int) -> torch.Tensor:
        start, owner = self._owner(address)
        return torch.frombuffer(owner, dtype=torch.uint8, count=nbytes, offset=address - start)

    def _owner(self, address: int) -> tuple[int, mmap.mmap]:
        return next((start, made) for start, made in self._ranges.items() if start <= address < start + len(made))


def _resident(address: int, size: int) -> int:
    """Bytes of a range that have memory behind them: pages that nobody touched have none. mincore(2)."""
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    if ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages):
        return size
    return mmap.PAGESIZE * sum(pages.raw.count(bits) for bits in range(1, 256, 2))


def ask_for_large_pages(made: mmap.mmap) -> None:
    """A hint: fewer faults and look-ups. Not every system has them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            made.madvise(mmap.MADV_HUGEPAGE)
