"""Memory for masks: from which the device reads them, and into which other processes fill them."""

import mmap
import os
from collections import deque
from typing import Protocol

import numpy as np

from octavo.grammar.base import Words

BUFFERS = 3  # of masks: those seen last, those that the device reads, those that are filled
ROWS = 256  # of one in shared memory
OWN = 256  # of a follower, for masks that are not filled where they belong
FEWEST = 16  # rows of a buffer elsewhere


class HostMemory(Protocol):
    """Memory from which masks reach the device in one copy, without anybody's waiting for it."""

    def host_memory(self, length: int) -> Words:
        """So many int32 of it."""
        ...

    def pin(self, array: Words) -> bool:
        """Make it of memory that is there already; False: that cannot be."""
        ...

    def unpin(self, array: Words) -> None:
        """Undo that, when no copy is under way."""
        ...


class Shared:
    """Memory that followers fill masks into, [rows, words]: first the buffers, then each one's own rows."""

    def __init__(self, followers: int, words: int) -> None:
        rows = BUFFERS * ROWS + followers * OWN
        self.descriptor = os.memfd_create("octavo-masks")
        os.ftruncate(self.descriptor, rows * words * 4)
        self.rows = mapped(self.descriptor, rows, words)
        self.buffers = self.rows[: BUFFERS * ROWS]

    @staticmethod
    def first_of(place: int) -> int:
        return BUFFERS * ROWS + place * OWN

    def close(self) -> None:
        os.close(self.descriptor)


class Buffers:
    """Memory for masks that is used again."""

    def __init__(self, memory: HostMemory, words: int) -> None:
        self._memory = memory
        self._words = words
        self._rows: deque[Words] = deque(maxlen=BUFFERS)  # those that were used last are at the end
        self._shared: Words | None = None
        self._turn = 0

    def share(self, rows: Words) -> None:
        """Use these rows, of BUFFERS times ROWS, wherever they suffice."""
        self._shared = rows

    def take(self, count: int) -> tuple[Words, int | None]:
        """Rows, and where they begin in shared memory; None: they are not in it."""
        if self._shared is not None and count <= ROWS:
            self._turn = (self._turn + 1) % BUFFERS
            base = self._turn * ROWS
            return self._shared[base : base + count], base
        if len(self._rows) == BUFFERS and len(self._rows[0]) >= count:
            self._rows.rotate(-1)
        else:
            rows = max(FEWEST, 1 << (count - 1).bit_length())
            self._rows.append(self._memory.host_memory(rows * self._words).reshape(rows, self._words))
        return self._rows[-1][:count], None


class Plain:
    """Any memory."""

    def host_memory(self, length: int) -> Words:
        return np.empty(length, dtype=np.int32)

    def pin(self, array: Words) -> bool:
        del array
        return True

    def unpin(self, array: Words) -> None:
        """It is as it was."""


def mapped(memory: int, rows: int, words: int) -> Words:
    """The memory behind a descriptor, [rows, words]."""
    return np.frombuffer(mmap.mmap(memory, rows * words * 4), dtype=np.int32).reshape(rows, words)
