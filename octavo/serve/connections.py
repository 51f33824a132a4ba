"""The open connections of a server: how many, from where, and which could go if others need the place.

When the house is full, the connection that has been idle longest makes room, as in nginx: ten thousand that do
nothing cannot keep one that asks something out. Only when all are busy is a newcomer refused.
"""

import contextlib
from collections import Counter
from typing import Protocol

from octavo.base.config import LimitsConfig
from octavo.serve.auth import is_loopback

RESERVED_FILES = 256  # for everything that is not a client's connection


class Connection(Protocol):
    """What the book needs of one."""

    def leave(self) -> None:
        """Close, since it does nothing."""
        ...


class Connections:
    """The book of one server. Addresses of this machine are bounded only by the whole: proxies live there."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._most = min(limits.max_connections, file_room())
        self._most_each = limits.max_connections_per_address
        self._open: set[Connection] = set()
        self._by_address: Counter[str] = Counter()
        self._idle: dict[Connection, None] = {}  # the longest first

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection, address: str) -> bool:
        """False if there is no room for it. A new connection is idle until it has asked something."""
        if self._most_each and self._by_address[address] >= self._most_each and not is_loopback(address):
            return False
        if len(self._open) >= self._most:
            if not self._idle:
                return False
            longest = next(iter(self._idle))
            self.busy(longest)
            longest.leave()
        self._open.add(connection)
        self._by_address[address] += 1
        self.idle(connection)
        return True

    def leave(self, connection: Connection, address: str) -> None:
        """It is gone. One that never entered is passed over."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]

    def idle(self, connection: Connection) -> None:
        """It waits for its next request."""
        if connection in self._open:
            self._idle.pop(connection, None)
            self._idle[connection] = None

    def busy(self, connection: Connection) -> None:
        """It has a request."""
        self._idle.pop(connection, None)


def file_room() -> int:
    """Connections that the system's limit on open files leaves room for."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return max(16, soft - RESERVED_FILES)
    return 1 << 20
