"""Uploaded files and what batches write: bytes in a folder under names of ours, all else in SQLite beside them.

A caller's file name is a label and never a path.
"""

import asyncio
import sqlite3
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from msgspec import Struct

from octavo.base.errors import ConfigError, NotFound, Overloaded, TooLarge
from octavo.serve.store.database import Database
from octavo.serve.store.place import Place

T = TypeVar("T")

MAX_FILES = 10_000  # of one owner
WRITE_BYTES = 1 << 20

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created INTEGER NOT NULL, serial INTEGER NOT NULL,
    filename TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS files_in_order ON files (owner, serial);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, serial INTEGER NOT NULL, open INTEGER NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS batches_in_order ON batches (owner, serial);
"""


class FileRow(Struct, frozen=True):
    """What is known of a file. `serial` orders files of one second."""

    id: str
    owner: str
    created: int
    serial: int
    filename: str
    purpose: str
    bytes: int


class FileStore:
    """`place` None: there are no files here."""

    def __init__(self, place: Place | None, *, max_file: int, max_total: int) -> None:
        self.folder = place.path if place else None
        self.max_file = max_file
        self.max_total = max_total
        self._index = Database(place.path / "index.sqlite", _SCHEMA, self._begin) if place else None
        self._kept = 0
        self.writing = 0  # bytes of files that are not whole yet

    def open_now(self) -> None:
        """Opens the folder at start-up. Raises ConfigError."""
        if self._index is not None:
            self._index.open_now()

    @property
    def exists(self) -> bool:
        """Whether an earlier server has left something here."""
        return self._index is not None and self._index.path.exists()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`work` on the index, a transaction of its own. NotFound where the server keeps no files."""
        if self._index is None:
            raise NotFound("This server keeps no files.", code="files_disabled")
        try:
            return await self._index.run(work)
        except ConfigError as exc:
            raise NotFound("This server cannot keep files.", code="files_disabled") from exc

    async def create(self, owner: str, filename: str, purpose: str, *, bounded: bool = True) -> "Upload":
        """A file to write to; it can be seen once it is finished. `bounded`: a caller's own, which may be too many."""
        count = await self.run(
            lambda connection: connection.execute("SELECT count(*) FROM files WHERE owner = ?", (owner,)).fetchone()[0]
        )
        if bounded and count >= MAX_FILES:
            raise TooLarge(f"There are {MAX_FILES} files already. Delete some.", code="too_many_files")
        assert self.folder is not None
        return Upload(self, self.folder, owner, filename, purpose, bounded=bounded)

    async def get(self, owner: str, id: str) -> FileRow:
        """NotFound if it is not there or another's."""
        return await self.run(lambda connection: _find(connection, owner, id))

    async def page(
        self, owner: str, *, purpose: str | None, after: str | None, limit: int, ascending: bool
    ) -> list[FileRow]:
        """At most `limit` files that follow the file `after`."""
        start = (await self.get(owner, after)).serial if after else None
        sql, values = "SELECT * FROM files WHERE owner = ?", [owner]
        if purpose is not None:
            sql, values = f"{sql} AND purpose = ?", [*values, purpose]
        if start is not None:
            sql, values = f"{sql} AND serial {'>' if ascending else '<'} ?", [*values, str(start)]
        sql = f"{sql} ORDER BY serial {'ASC' if ascending else 'DESC'} LIMIT {int(limit)}"
        rows = await self.run(lambda connection: connection.execute(sql, values).fetchall())
        return [FileRow(*row) for row in rows]

    async def delete(self, owner: str, id: str) -> None:
        """NotFound if it is not there."""

        def forget(connection: sqlite3.Connection) -> FileRow:
            row = _find(connection, owner, id)
            connection.execute("DELETE FROM files WHERE id = ?", (id,))
            return row

        row = await self.run(forget)
        self._kept -= row.bytes
        await asyncio.to_thread(self.path(row).unlink, missing_ok=True)

    def path(self, row: FileRow) -> Path:
        """Where its bytes lie."""
        assert self.folder is not None
        return self.folder / row.id

    def check_room(self, more: int) -> None:
        """Overloaded when `more` bytes would be too many for the folder."""
        if self._kept + self.writing + more > self.max_total:
            raise Overloaded("The server has no room for more files. Delete some.")

    async def add(self, row: FileRow) -> None:
        """Makes a finished file visible."""
        values = (row.id, row.owner, row.created, row.serial, row.filename, row.purpose, row.bytes)
        await self.run(lambda connection: connection.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", values))
        self._kept += row.bytes

    def close(self) -> None:
        """Closes the index."""
        if self._index is not None:
            self._index.close()

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._kept = connection.execute("SELECT coalesce(sum(bytes), 0) FROM files").fetchone()[0]
        assert self.folder is not None
        for left in self.folder.glob("*.part"):
            left.unlink(missing_ok=True)


class Upload:
    """A file being written. `finish` or `abort` ends it."""

    def __init__(
        self, store: FileStore, folder: Path, owner: str, filename: str, purpose: str, *, bounded: bool
    ) -> None:
        self.id = f"file-{uuid.uuid4().hex}"
        self.owner = owner
        self.filename = filename
        self.purpose = purpose
        self.size = 0
        self._store = store
        self._counted = 0  # bytes of it in `store.writing`
        self._max_bytes = store.max_file if bounded else store.max_total
        self._bounded = bounded
        self._final = folder / self.id
        self._part = folder / f"{self.id}.part"
        self._file: BinaryIO = self._part.open("xb")
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    async def write(self, data: bytes) -> None:
        """Adds bytes. TooLarge for too long a file, Overloaded when the folder is full."""
        if self.size + len(data) > self._max_bytes:
            raise TooLarge(f"A file may have at most {self._max_bytes} bytes.", code="file_too_large")
        if self._bounded:  # a batch has made sure of its room before
            self._store.check_room(len(data))
        self.size += len(data)
        self._counted += len(data)
        self._store.writing += len(data)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= WRITE_BYTES:
            await self._flush()

    async def finish(self) -> FileRow:
        """Makes the file visible."""
        await self._flush()
        self._file.close()
        now = time.time()
        row = FileRow(self.id, self.owner, int(now), int(now * 1e6), self.filename, self.purpose, self.size)
        await asyncio.to_thread(self._part.rename, self._final)
        self._release()
        try:
            await self._store.add(row)
        except Exception:
            self._final.unlink(missing_ok=True)
            raise
        return row

    def abort(self) -> None:
        """Forgets it, unless it is whole already."""
        self._file.close()
        self._part.unlink(missing_ok=True)
        self._release()

    def _release(self) -> None:
        """It is no longer being written."""
        self._store.writing -= self._counted
        self._counted = 0

    async def _flush(self) -> None:
        data, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
        await asyncio.to_thread(self._file.write, data)


def _find(connection: sqlite3.Connection, owner: str, id: str) -> FileRow:
    row = connection.execute("SELECT * FROM files WHERE id = ? AND owner = ?", (id, owner)).fetchone()
    if row is None:
        raise NotFound(f"There is no file {id[:80]!r}.", param="file_id", code="file_not_found")
    return FileRow(*row)
