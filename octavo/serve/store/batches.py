"""Batches as rows: the object that a caller sees, and whether work is left."""

import sqlite3
import time
from typing import Any

import msgspec
from msgspec import Struct

from octavo.base.errors import NotFound, TooLarge
from octavo.serve.store.files import FileStore

MAX_OPEN = 256  # batches of one owner that have not ended
MAX_ENDED = 4096  # batches of one owner that have; beyond it the oldest go
KEEP_S = 90 * 86_400  # how long one that has ended can be looked up; its files stay until they are deleted


class Counts(Struct, kw_only=True):
    """Lines of a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(Struct, kw_only=True):
    """OpenAI's batch object."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: dict[str, Any] | None = None
    input_file_id: str
    completion_window: str
    status: str = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = msgspec.field(default_factory=Counts)
    metadata: dict[str, str] | None = None

    def turn(self, status: str) -> None:
        """Sets the status and the time of it."""
        self.status = status
        if status != "validating":
            setattr(self, f"{status}_at", int(time.time()))

    @property
    def open(self) -> bool:
        """Whether work is left."""
        return self.status in {"validating", "in_progress", "finalizing", "cancelling"}


_BATCH = msgspec.json.Decoder(Batch)


class BatchStore:
    """Batches lie in the index of the files that they read and write."""

    def __init__(self, files: FileStore) -> None:
        self._files = files

    async def add(self, owner: str, batch: Batch) -> None:
        """A new batch. TooLarge when its owner has too many that have not ended."""
        now = time.time_ns() // 1000
        values = (batch.id, owner, now, batch.open, msgspec.json.encode(batch))

        def insert(connection: sqlite3.Connection) -> None:
            count = connection.execute("SELECT count(*) FROM batches WHERE owner = ? AND open = 1", (owner,))
            if count.fetchone()[0] >= MAX_OPEN:
                raise TooLarge(f"There are {MAX_OPEN} batches that have not ended.", code="too_many_batches")
            _forget_old(connection, owner, now)
            connection.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?)", values)

        await self._files.run(insert)

    async def save(self, batch: Batch) -> None:
        """Writes its state down."""
        values = (batch.open, msgspec.json.encode(batch), batch.id)
        await self._files.run(
            lambda connection: connection.execute("UPDATE batches SET open = ?, body = ? WHERE id = ?", values)
        )

    async def get(self, owner: str, id: str) -> Batch:
        """NotFound if it is not there or another's."""
        return _BATCH.decode((await self._row(owner, id))[1])

    async def page(self, owner: str, *, after: str | None, limit: int) -> list[Batch]:
        """At most `limit` batches older than the batch `after`, newest first."""
        before = (await self._row(owner, after))[0] if after else 1 << 62
        rows = await self._files.run(
            lambda connection: connection.execute(
                "SELECT body FROM batches WHERE owner = ? AND serial < ? ORDER BY serial DESC LIMIT ?",
                (owner, before, limit),
            ).fetchall()
        )
        return [_BATCH.decode(body) for (body,) in rows]

    async def unfinished(self) -> list[tuple[str, Batch]]:
        """Owner and batch of all that have not ended, oldest first."""
        rows = await self._files.run(
            lambda connection: connection.execute(
                "SELECT owner, body FROM batches WHERE open = 1 ORDER BY serial"
            ).fetchall()
        )
        return [(owner, _BATCH.decode(body)) for owner, body in rows]

    async def _row(self, owner: str, id: str) -> tuple[int, bytes]:
        row = await self._files.run(
            lambda connection: connection.execute(
                "SELECT serial, body FROM batches WHERE id = ? AND owner = ?", (id, owner)
            ).fetchone()
        )
        if row is None:
            raise NotFound(f"There is no batch {id[:80]!r}.", param="batch_id", code="batch_not_found")
        return int(row[0]), bytes(row[1])


def _forget_old(connection: sqlite3.Connection, owner: str, now: int) -> None:
    """Rows of batches that ended long ago, or that are too many. `now` in microseconds, as serials are."""
    connection.execute("DELETE FROM batches WHERE open = 0 AND serial < ?", (now - KEEP_S * 1_000_000,))
    connection.execute(
        "DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE open = 0 AND owner = ? "
        "ORDER BY serial DESC LIMIT -1 OFFSET ?)",
        (owner, MAX_ENDED),
    )
