"""What a batch has done so far, a line for each answer in the order they came: how it goes on after a restart."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Raw, Struct


class _Entry(Struct):
    line: int
    ok: bool
    row: Raw


_DECODER = msgspec.json.Decoder(_Entry)


class Journal:
    """Answers by line number, their bytes on disk. A last line cut by a crash is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.ok = 0
        self._places: dict[int, tuple[int, int, bool]] = {}
        path.touch(mode=0o600)
        self._file: BinaryIO = path.open("r+b")
        self._read()

    def __contains__(self, line: int) -> bool:
        return line in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, line: int, row: bytes, *, ok: bool) -> None:
        """Writes an answer down."""
        entry = msgspec.json.encode(_Entry(line, ok, Raw(row))) + b"\n"
        self._file.write(entry)
        self._file.flush()
        self._note(line, len(entry), ok)

    def rows(self, ok: bool | None = None) -> Iterator[bytes]:
        """Answers in the order of their lines, each with its line break; `ok` picks the good or the bad ones."""
        for line in sorted(self._places):
            start, length, good = self._places[line]
            if ok is None or good is ok:
                self._file.seek(start)
                yield bytes(_DECODER.decode(self._file.read(length)).row) + b"\n"
        self._file.seek(self.size)

    def close(self, *, remove: bool = False) -> None:
        """Ends the use; `remove` when its answers have gone elsewhere."""
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)

    def _read(self) -> None:
        for entry in self._file:
            try:
                found = _DECODER.decode(entry) if entry.endswith(b"\n") else None
            except msgspec.DecodeError:
                found = None
            if found is None:
                break
            self._note(found.line, len(entry), found.ok)
        self._file.seek(self.size)
        self._file.truncate()

    def _note(self, line: int, length: int, ok: bool) -> None:
        self._places[line] = (self.size, length, ok)
        self.size += length
        self.ok += ok
