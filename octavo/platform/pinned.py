"""A copy of device memory in pinned host memory, from which it comes back as fast as the bus goes.

Torch's own pinned allocator rounds sizes up to a power of two and keeps what it has; here the host gives exactly the
bytes, and gets them back.
"""

import mmap
import threading
from collections.abc import Iterator
from typing import Any

import torch

from octavo.base.errors import ConfigError
from octavo.base.human import format_bytes
from octavo.platform.arena import TaggedMemory
from octavo.platform.host_memory import ask_for_large_pages
from octavo.platform.limits import memory_limits

CHUNK = 256 << 20  # pinned and copied at a time, in whole pages: pinning one overlaps copying the one before
RESERVE = 512 << 20  # of host memory, left to everybody else


class Aside:
    """A tag's contents while its memory is given back. Made by `put_aside`."""

    def __init__(self, memory: TaggedMemory, tag: str, api: Any, index: int) -> None:
        """`api`: the CUDA bindings; `index`: of the device."""
        self.given = 0
        self._memory = memory
        self._tag = tag
        self._api = api
        self._index = index
        self._chunks: list[tuple[mmap.mmap, torch.Tensor]] = []

    def take(self) -> None:
        """Copy everything to the host. Raises ConfigError, with nothing left on the host, if that cannot be."""
        try:
            for piece in self._pieces():
                host = self._pin(piece.numel())
                host.copy_(piece, non_blocking=True)
            torch.cuda.synchronize(self._index)
        except BaseException:
            torch.cuda.synchronize(self._index)
            self._unpin(self._chunks)
            raise

    def bring_back(self) -> None:
        """Memory and contents are what they were; host memory goes. Raises MemoryError, and may be called again."""
        try:
            for piece, (_, host) in zip(self._memory.restoring(self._tag, CHUNK), self._chunks, strict=True):
                piece.copy_(host, non_blocking=True)
        finally:
            torch.cuda.synchronize(self._index)
        self.forget()

    def forget(self) -> None:
        """Let the host memory go, beside whatever comes next: the system takes seconds for many gigabytes."""
        chunks, self._chunks = self._chunks, []
        if chunks:
            threading.Thread(target=self._unpin, args=(chunks,), name="octavo-unpin").start()

    def _pieces(self) -> Iterator[torch.Tensor]:
        for part in self._memory.parts(self._tag):
            yield from torch.split(part, CHUNK)

    def _pin(self, nbytes: int) -> torch.Tensor:
        try:
            made = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise ConfigError(f"the host gave no memory to keep {self._tag} in: {error.strerror}") from None
        ask_for_large_pages(made)
        host = torch.frombuffer(made, dtype=torch.uint8)
        (code,) = self._api.cuMemHostRegister(host.data_ptr(), nbytes, 0)
        if code != self._api.CUresult.CUDA_SUCCESS:
            name = getattr(code, "name", code)
            raise ConfigError(f"the system would not pin {format_bytes(nbytes)} of host memory ({name})")
        self._chunks.append((made, host))
        return host

    def _unpin(self, chunks: list[tuple[mmap.mmap, torch.Tensor]]) -> None:
        torch.cuda.set_device(self._index)  # this may be a thread that knows no device yet
        while chunks:
            _, host = chunks.pop()
            self._api.cuMemHostUnregister(host.data_ptr())


def put_aside(memory: TaggedMemory, tag: str, api: Any, index: int) -> Aside:
    """Copy a tag's contents to the host and give its device memory back.

    Raises ConfigError, with nothing changed, if the host has no room for them within its container's limit.
    """
    check_room(memory.nbytes(tag), tag)
    aside = Aside(memory, tag, api, index)
    aside.take()
    aside.given = memory.drop(tag)
    return aside


def check_room(nbytes: int, tag: str) -> None:
    """Raises ConfigError unless the host, or the container within it, has `nbytes` to spare."""
    free, _ = memory_limits()
    if nbytes + RESERVE > free:
        raise ConfigError(
            f"level 1 would keep {format_bytes(nbytes)} of {tag} in host memory, where {format_bytes(free)} are free "
            f"({format_bytes(RESERVE)} stay so); level 2 drops them and reads the files again"
        )
