"""Stored responses: each with its owner, its input and what came before it; bounded by age and by size."""

import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from octavo.base.errors import ConfigError, NotFound
from octavo.serve.store.database import Database
from octavo.serve.store.place import Place

log = logging.getLogger("octavo.serve")

T = TypeVar("T")

MAX_CHAIN = 1024  # responses that one conversation may be made of
RUNNING = ("queued", "in_progress")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, status TEXT NOT NULL, previous TEXT,
    input BLOB NOT NULL, response BLOB NOT NULL, events BLOB NOT NULL, size INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON responses (created);
CREATE INDEX IF NOT EXISTS by_status ON responses (status);
"""


@dataclass(frozen=True)
class StoredResponse:
    """One row. `input` and `response` are JSON; `previous` is the id of the response that this one continues.

    `events`: the whole stream, where it may be asked for again.
    """

    id: str
    owner: str
    status: str
    previous: str | None
    input: bytes
    response: bytes
    events: bytes = b""

    @property
    def size(self) -> int:
        """Bytes it counts for."""
        return len(self.input) + len(self.response) + len(self.events) + 256


class ResponseStore:
    """`place` None: nothing is kept, and whoever asks for something kept hears that it is not there."""

    def __init__(self, place: Place | None, *, max_age_s: float, max_bytes: int) -> None:
        self._max_age_s = max_age_s
        self._max_bytes = max_bytes
        self._database = Database(place.path, _SCHEMA, self._begin) if place else None
        self._total = 0

    def open_now(self) -> None:
        """Opens the file at start-up. Raises ConfigError."""
        if self._database is not None:
            self._database.open_now()

    async def usable(self) -> bool:
        """Whether responses can be kept. A usual place that cannot be used is logged once and then left alone."""
        if self._database is None:
            return False
        try:
            await self._database.run(lambda _: None)
        except ConfigError as exc:
            log.warning("responses are not stored: %s", exc)
            self._database.close()
            self._database = None
            return False
        return True

    async def put(self, row: StoredResponse) -> None:
        """Adds or replaces a response; the oldest go when there is no room."""
        if self._database is not None:
            await self._database.run(lambda connection: self._put(connection, row))

    async def get(self, owner: str, id: str) -> StoredResponse:
        """NotFound if it is not there, too old, or another's."""
        return (await self.chain(owner, id, 1))[0]

    async def chain(self, owner: str, id: str, limit: int = MAX_CHAIN) -> list[StoredResponse]:
        """The response and those it continues, newest first. NotFound if one of them is gone."""
        return await self._find(id, lambda connection: self._chain(connection, owner, id, limit))

    async def delete(self, owner: str, id: str) -> None:
        """NotFound if it is not there."""

        def drop(connection: sqlite3.Connection) -> None:
            row = self._chain(connection, owner, id, 1)[0]
            self._drop(connection, [(row.id, row.size)])

        await self._find(id, drop)

    def close(self) -> None:
        """Closes the file."""
        if self._database is not None:
            self._database.close()

    async def _find(self, id: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """NotFound of `id` where nothing is kept."""
        if not await self.usable() or self._database is None:
            raise not_found(id)
        return await self._database.run(work)

    def _begin(self, connection: sqlite3.Connection) -> None:
        """What a response cannot survive is said where it was running when the last server ended."""
        self._total = connection.execute("SELECT coalesce(sum(size), 0) FROM responses").fetchone()[0]
        marks = ",".join("?" * len(RUNNING))
        connection.execute(f"UPDATE responses SET status = 'lost' WHERE status IN ({marks})", RUNNING)

    def _put(self, connection: sqlite3.Connection, row: StoredResponse) -> None:
        old = connection.execute("SELECT size FROM responses WHERE id = ?", (row.id,)).fetchone()
        connection.execute(
            "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "status = excluded.status, response = excluded.response, events = excluded.events, size = excluded.size",
            (row.id, row.owner, time.time(), row.status, row.previous, row.input, row.response, row.events, row.size),
        )
        self._total += row.size - (old[0] if old else 0)
        too_old = time.time() - self._max_age_s
        self._drop(connection, connection.execute("SELECT id, size FROM responses WHERE created < ?", (too_old,)))
        while self._total > self._max_bytes:
            oldest = connection.execute("SELECT id, size FROM responses ORDER BY created LIMIT 16").fetchall()
            if not oldest:
                return
            self._drop(connection, oldest[: self._needed(oldest)])

    def _needed(self, oldest: list[tuple[str, int]]) -> int:
        """How many of them must go."""
        over, count = self._total - self._max_bytes, 0
        while over > 0 and count < len(oldest):
            over -= oldest[count][1]
            count += 1
        return count

    def _drop(self, connection: sqlite3.Connection, rows: "sqlite3.Cursor | list[tuple[str, int]]") -> None:
        for id, size in list(rows):
            connection.execute("DELETE FROM responses WHERE id = ?", (id,))
            self._total -= size

    def _chain(self, connection: sqlite3.Connection, owner: str, id: str, limit: int) -> list[StoredResponse]:
        found: list[StoredResponse] = []
        oldest, wanted = time.time() - self._max_age_s, id
        while len(found) < limit:
            row = connection.execute(
                "SELECT id, owner, status, previous, input, response, events FROM responses "
                "WHERE id = ? AND owner = ? AND created >= ?",
                (wanted, owner, oldest),
            ).fetchone()
            if row is None:
                raise not_found(wanted)
            found.append(StoredResponse(*row))
            if found[-1].previous is None:
                break
            wanted = found[-1].previous
        return found


def not_found(id: str) -> NotFound:
    """What is said of a response that is not there, for whatever reason."""
    return NotFound(f"There is no response {id[:80]!r}.", param="response_id", code="response_not_found")
