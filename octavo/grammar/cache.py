"""Compiled constraints by what they were compiled from: the least recently used go when their bytes are too many."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class ByteCache(Generic[T]):
    """At most `max_bytes` in all. Safe for several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> T | None:
        """The entry, which becomes the most recently used."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: T, num_bytes: int) -> None:
        """Keep it, unless it alone is too large."""
        with self._lock:
            old = self._entries.pop(key, None)
            self.num_bytes -= old[1] if old else 0
            if num_bytes > self.max_bytes:
                return
            self._entries[key] = value, num_bytes
            self.num_bytes += num_bytes
            while self.num_bytes > self.max_bytes:
                _, (_, gone) = self._entries.popitem(last=False)
                self.num_bytes -= gone
