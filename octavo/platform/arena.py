"""Memory by tag whose addresses outlive it: what a tag holds can go and come back behind the same tensors.

Captured device work and native kernels keep raw addresses, so memory that is given back must return to where it was.
An arena reserves a range of addresses for each tag, puts memory behind it as tensors are asked for, and can take that
memory away and put fresh memory there later. Tensors stay valid objects throughout; touching one while its tag is
dropped is a fault on a GPU and reads zeros on a CPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Protocol

from octavo.base.errors import ConfigError
from octavo.base.wire import MEMORY_TAGS

if TYPE_CHECKING:
    import torch

WEIGHTS, KV_CACHE = TAGS = MEMORY_TAGS

ALIGN = 512  # bytes, as torch's own allocator
GROW = 64 << 20  # least piece of memory put behind a range: many small tensors share it
PIECE = 4 << 30  # most of one: a driver gives 124 GB back in 40 to 68 ms by such pieces, 58 to 77 as a whole


class Backing(Protocol):
    """Where an arena's memory comes from. Addresses and sizes are multiples of `granularity`."""

    granularity: int
    zeroed: bool  # fresh memory reads as zeros

    def reserve(self, size: int) -> int:
        """A range of addresses with nothing behind it. Raises MemoryError."""
        ...

    def map(self, address: int, size: int) -> None:
        """Put memory, its contents unset, behind a part of a range. Raises MemoryError, with nothing changed."""
        ...

    def unmap(self, address: int, size: int) -> int:
        """Give the memory of one earlier `map` back; how many bytes there were. The device must be done with it."""
        ...

    def free(self, address: int, size: int) -> None:
        """Let a range go that has nothing behind it."""
        ...

    def view(self, address: int, nbytes: int) -> "torch.Tensor":
        """Bytes ``[nbytes]`` (uint8) that have memory behind them, as a tensor that owns nothing."""
        ...


class TaggedMemory(Protocol):
    """An arena, or what stands for one where memory cannot be given back."""

    why_not: str  # why nothing can be dropped; empty: it can

    def tensor(self, tag: str, shape: tuple[int, ...], dtype: "torch.dtype") -> "torch.Tensor":
        """A tensor of unset contents for the arena's life. Raises MemoryError."""
        ...

    def zeros(self, tag: str, shape: tuple[int, ...], dtype: "torch.dtype") -> "torch.Tensor":
        """The same, zeroed; where fresh memory is so by itself, nothing is touched."""
        ...

    def nbytes(self, tag: str) -> int:
        """Bytes that the tag takes, or took before it was dropped."""
        ...

    def parts(self, tag: str) -> "list[torch.Tensor]":
        """All bytes of a tag that is not dropped, in order (uint8)."""
        ...

    def drop(self, tag: str) -> int:
        """Give the tag's memory back and keep its addresses; bytes given back. Again is nothing.

        The device must be done with it. Raises ConfigError where that cannot be.
        """
        ...

    def restore(self, tag: str) -> None:
        """Memory of unset contents behind the same addresses. Raises MemoryError, the tag still dropped."""
        ...

    def restoring(self, tag: str, step: int) -> "Iterator[torch.Tensor]":
        """`restore` by pieces of `step` bytes: each (uint8) as soon as it is there, in order.

        Making memory takes a device a while; what is copied into one piece hides the next one's making. Raises
        MemoryError, the tag still dropped; it is dropped too if the caller stops early.
        """
        ...

    def discard(self, tag: str) -> None:
        """Give the tag's memory and addresses back. No tensor of it may be touched afterwards."""
        ...

    def close(self) -> None:
        """Let everything go. No tensor of it may be touched afterwards."""
        ...


@dataclass(slots=True)
class _Range:
    """A tag's addresses, how many bytes are in use, and what was mapped how."""

    start: int
    size: int
    used: int = 0
    pieces: list[tuple[int, int]] = field(default_factory=list)
    dropped: bool = False

    @property
    def mapped(self) -> int:
        """Bytes from the start that have memory behind them."""
        return sum(size for _, size in self.pieces)


class Arena:
    """TaggedMemory over a backing. Each tag may grow to `limit` bytes."""

    why_not = ""

    def __init__(self, backing: Backing, limit: int) -> None:
        self._backing = backing
        self._limit = self._whole(limit)
        self._ranges: dict[str, _Range] = {}

    def reserve(self, *tags: str) -> None:
        """Take these tags' addresses now, to see whether there are any. Raises MemoryError."""
        for tag in tags:
            self._range(tag)

    def tensor(self, tag: str, shape: tuple[int, ...], dtype: "torch.dtype") -> "torch.Tensor":
        nbytes = max(1, prod(shape)) * dtype.itemsize
        span = self._range(tag)
        if span.dropped:
            raise MemoryError(f"{tag} is dropped; restore it before it grows")
        at = -(-span.used // ALIGN) * ALIGN
        if at + nbytes > span.size:
            raise MemoryError(f"{tag} would need {at + nbytes} bytes, {span.size} are the most there can be")
        missing = at + nbytes - span.mapped
        if missing > 0:
            self._grow(span, missing)
        span.used = at + nbytes
        flat = self._backing.view(span.start + at, nbytes).view(dtype)
        return flat[: prod(shape)].view(shape)

    def zeros(self, tag: str, shape: tuple[int, ...], dtype: "torch.dtype") -> "torch.Tensor":
        made = self.tensor(tag, shape, dtype)
        return made if self._backing.zeroed else made.zero_()

    def nbytes(self, tag: str) -> int:
        span = self._ranges.get(tag)
        return self._whole(span.used) if span else 0

    def parts(self, tag: str) -> "list[torch.Tensor]":
        span = self._ranges.get(tag)
        if span is None or span.dropped or not span.used:
            return []
        return [self._backing.view(span.start, span.used)]

    def drop(self, tag: str) -> int:
        span = self._ranges.get(tag)
        if span is None or span.dropped:
            return 0
        given = self._release(span)
        span.dropped = True
        return given

    def restore(self, tag: str) -> None:
        for _ in self.restoring(tag, PIECE):
            pass

    def restoring(self, tag: str, step: int) -> "Iterator[torch.Tensor]":
        span = self._ranges.get(tag)
        if span is None or not span.dropped:
            return
        size, step = self._whole(span.used), self._whole(step)
        try:
            for at in range(0, size, step):
                piece = span.start + at, min(step, size - at)
                self._backing.map(*piece)
                span.pieces.append(piece)
                yield self._backing.view(piece[0], min(piece[1], span.used - at))
            span.dropped = False
        finally:
            if span.dropped:
                self._release(span)

    def discard(self, tag: str) -> None:
        self.drop(tag)
        span = self._ranges.pop(tag, None)
        if span is not None:
            self._backing.free(span.start, span.size)

    def close(self) -> None:
        for tag in list(self._ranges):
            self.discard(tag)

    def _release(self, span: _Range) -> int:
        """Bytes that there were."""
        given = sum(self._backing.unmap(*piece) for piece in span.pieces)
        span.pieces.clear()
        return given

    def _range(self, tag: str) -> _Range:
        if tag not in self._ranges:
            self._ranges[tag] = _Range(self._backing.reserve(self._limit), self._limit)
        return self._ranges[tag]

    def _grow(self, span: _Range, missing: int) -> None:
        """At least `missing` bytes more; a little ahead, so that small tensors do not each take a piece."""
        before = span.mapped
        try:
            self._map(span, before + min(self._whole(max(missing, GROW)), span.size - before))
        except MemoryError:
            self._map(span, before + self._whole(missing))

    def _map(self, span: _Range, end: int) -> None:
        """Memory behind a range as far as `end`. Raises MemoryError, with nothing changed."""
        before = len(span.pieces)
        try:
            while (at := span.mapped) < end:
                piece = span.start + at, min(self._whole(PIECE), end - at)
                self._backing.map(*piece)
                span.pieces.append(piece)
        except MemoryError:
            for piece in span.pieces[before:]:
                self._backing.unmap(*piece)
            del span.pieces[before:]
            raise

    def _whole(self, nbytes: int) -> int:
        step = self._backing.granularity
        return -(-nbytes // step) * step


class NoArena:
    """TaggedMemory out of torch's own allocator: everything works but giving it back."""

    def __init__(self, device: "torch.device", why_not: str) -> None:
        self.why_not = why_not
        self._device = device
        self._nbytes: dict[str, int] = {}

    def tensor(self, tag: str, shape: tuple[int, ...], dtype: "torch.dtype") -> "torch.Tensor":
        import torch

        made = torch.empty(shape, dtype=dtype, device=self._device)
        self._nbytes[tag] = self._nbytes.get(tag, 0) + made.nbytes
        return made

    def zeros(self, tag: str, shape: tuple[int, ...], dtype: "torch.dtype") -> "torch.Tensor":
        return self.tensor(tag, shape, dtype).zero_()

    def nbytes(self, tag: str) -> int:
        return self._nbytes.get(tag, 0)

    def parts(self, tag: str) -> "list[torch.Tensor]":
        raise ConfigError(f"the memory of {tag} is not in one place: {self.why_not}")

    def drop(self, tag: str) -> int:
        raise ConfigError(f"the memory of {tag} cannot be given back: {self.why_not}")

    def restore(self, tag: str) -> None:
        """Nothing is ever dropped."""

    def restoring(self, tag: str, step: int) -> "Iterator[torch.Tensor]":
        del tag, step
        return iter(())

    def discard(self, tag: str) -> None:
        """Torch frees each tensor with its last reference."""
        self._nbytes.pop(tag, None)

    def close(self) -> None:
        """Torch frees each tensor with its last reference."""
