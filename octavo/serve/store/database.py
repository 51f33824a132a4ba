"""One SQLite file in one thread: statements queue up there and never hold the event loop."""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from octavo.base.errors import ConfigError, Unavailable
from octavo.serve.store.place import Lock

log = logging.getLogger("octavo.serve")

T = TypeVar("T")

BUSY_S = 5.0
OUT_OF_REACH = "What this server stores cannot be read or written now."


class Database:
    """Opened by its first use, when `begin` runs. Calls run one after another, each in a transaction of its own."""

    def __init__(self, path: Path, schema: str, begin: Callable[[sqlite3.Connection], None]) -> None:
        self.path = path
        self._schema = schema
        self._begin = begin
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-store")
        self._connection: sqlite3.Connection | None = None
        self._lock: Lock | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`work` in the store's thread. Raises ConfigError when the file cannot be used."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work)

    def open_now(self) -> None:
        """Opens the file and waits for it: at start-up only. Raises ConfigError."""
        self._thread.submit(self._do, lambda _: None).result()

    def close(self) -> None:
        """Closes the file after what is queued."""
        self._thread.submit(self._end).result()
        self._thread.shutdown()

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection or self._open()
        try:
            with connection:
                return work(connection)
        except sqlite3.DatabaseError as error:  # a full disk, above all, or a file that was damaged
            log.error("%s: %s", self.path, error)
            raise Unavailable(OUT_OF_REACH) from error

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = self._lock or Lock(self.path.with_name(self.path.name + ".lock"))
            self.path.touch(mode=0o600)
            connection = sqlite3.connect(self.path, timeout=BUSY_S, check_same_thread=False)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(
                "PRAGMA synchronous=NORMAL"
            )  # a crash of ours costs nothing, power loss perhaps the last
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.executescript(self._schema)
            with connection:
                self._begin(connection)
        except (OSError, sqlite3.Error) as exc:
            reason = getattr(exc, "strerror", None) or str(exc)
            reason = "it is a folder" if os.path.isdir(self.path) else reason.lower()
            raise ConfigError(f"{self.path} cannot be used: {reason}") from exc
        self._connection = connection
        return connection

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


@contextmanager
def within_reach() -> Iterator[None]:
    """Unavailable for a disk that is full or gone."""
    try:
        yield
    except (ConnectionError, TimeoutError):  # a client's, not a disk's
        raise
    except OSError as error:
        log.error("files: %s", error)
        raise Unavailable(OUT_OF_REACH) from error
