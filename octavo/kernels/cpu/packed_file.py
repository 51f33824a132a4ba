"""Packed weights kept in a file, so that the next start maps them instead of packing again.

A file a model under ``$XDG_CACHE_HOME/octavo/packed``, named by a digest of all that the bytes depend on: the weight
files as they stand, the quantization, the form of csrc/format.h. It holds a line of JSON that describes the matrices
in the order in which they are loaded, behind a digest of itself, then their bytes from page to page. Pages of a mapped
file are shared by all processes that serve it. A missing, foreign or damaged file only means packing again; like the
weight files that they come from, the numbers themselves have no checksum.
"""

import contextlib
import ctypes
import hashlib
import logging
import mmap
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from filelock import FileLock
from msgspec import Struct

from octavo.base.places import cache_folder
from octavo.kernels.cpu.loader import native

log = logging.getLogger(__name__)

FORM = 2  # of the packed bytes; another number when csrc/format.h or pack.cpp change what they mean
LEAST_BYTES = 32 << 20  # less is packed in a moment
SPARE_BYTES = 2 << 30  # of disk, beside the file
FOLDER_BYTES = 16 << 30  # of all files; beyond it those that were not used for longest go
_MAX_INDEX = 16 << 20
_PAGE = 4096
_DIGEST = 32  # characters before the JSON


class Piece(Struct, frozen=True, array_like=True):
    """One packed matrix."""

    tag: str  # what was packed
    layout: int
    rows: int
    columns: int
    unit: float
    offset: int  # of its bytes in the file


class PackedFile:
    """Hands out matrices of the file in order (`take`), or collects those that were packed (`add`) and writes them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made: list[tuple[str, Any]] = []
        self._pieces: list[Piece] = []
        self._next = 0
        self._map: mmap.mmap | None = None
        self._address = 0
        try:
            self._open()
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            log.debug("no packed weights: %s", error)

    def take(self, tag: str) -> Any | None:
        """The next matrix, if that is what `tag` describes; it is valid as long as this object."""
        if self._map is None or self._next >= len(self._pieces):
            return None
        piece = self._pieces[self._next]
        if piece.tag != tag:
            log.warning("%s holds other weights than expected; they are packed again", self._path)
            self._pieces = []
            self._path.unlink(missing_ok=True)  # the next start packs all of them
            return None
        self._next += 1
        module = native()
        assert module is not None
        return module.Weight(piece.layout, piece.rows, piece.columns, piece.unit, self._address + piece.offset)

    def add(self, tag: str, weight: Any) -> None:
        """Note a matrix that had to be packed."""
        self._made.append((tag, weight))

    def keep(self, least_bytes: int = LEAST_BYTES) -> threading.Thread | None:
        """Write what was packed, in a thread of its own, if all of it was and it is worth it."""
        made, self._made = self._made, []
        taken, self._next = self._next, 0  # weights that are dropped and loaded anew begin again
        if taken:
            log.info("packed weights are mapped from %s", self._path)
        if taken or sum(weight.nbytes for _, weight in made) < least_bytes:
            return None
        thread = threading.Thread(target=self._write, args=(made,), daemon=True, name="octavo-packed")
        thread.start()
        return thread

    def _open(self) -> None:
        with open(self._path, "rb") as file:
            line = file.readline(_MAX_INDEX).rstrip(b"\n")
            if line[:_DIGEST] != _digest(line[_DIGEST:]):
                raise ValueError(f"{self._path} is damaged")
            pieces = msgspec.json.decode(line[_DIGEST:], type=list[Piece])
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        module = native()
        for piece in pieces:
            size = module.packed_bytes(piece.layout, piece.rows, piece.columns) if module is not None else 0
            end = piece.offset + -(-size // _PAGE) * _PAGE + _PAGE  # kernels look a little ahead
            if not 0 < piece.offset < end <= len(data) or piece.offset % _PAGE or not 0 <= piece.layout < 10:
                raise ValueError(f"{self._path} is damaged")
        self._map, self._pieces = data, pieces
        self._address = np.frombuffer(data, dtype=np.uint8).ctypes.data
        os.utime(self._path)

    def _write(self, made: list[tuple[str, Any]]) -> None:
        pieces, at = [], 0
        for tag, weight in made:
            pieces.append(Piece(tag, weight.layout, weight.rows, weight.columns, weight.unit, at))
            at += -(-weight.nbytes // _PAGE) * _PAGE
        # The offsets' own digits lengthen the line: leave it room.
        start = -(-(_DIGEST + len(msgspec.json.encode(pieces)) + 16 * len(pieces) + 2) // _PAGE) * _PAGE
        index = msgspec.json.encode([msgspec.structs.replace(p, offset=p.offset + start) for p in pieces])
        part = self._path.with_suffix(".part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not _make_room(self._path.parent, start + at):
                return
            # Two starts at once: who came second must not empty the part under the first one's hands.
            with FileLock(self._path.with_suffix(".lock"), timeout=0), _whole(part) as file:
                file.write(_digest(index) + index + b"\n")
                for piece, (_, weight) in zip(pieces, made):
                    file.seek(start + piece.offset)
                    file.write((ctypes.c_char * weight.nbytes).from_address(weight.data))
                file.truncate(start + at + _PAGE)  # kernels look a little ahead
                file.flush()
                os.fsync(file.fileno())  # a machine that loses power now must not leave a name without its bytes
                part.replace(self._path)
        except OSError as error:  # of the lock too: somebody else writes the same
            log.debug("packed weights are not kept: %s", error)


def packed_file(paths: Sequence[Path], quantization: str | None) -> PackedFile:
    """The file that belongs to weight files as they stand now."""
    facts = [f"{FORM} {quantization}"]
    for path in paths:
        status = path.stat()
        facts.append(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
    return PackedFile(cache_folder() / "packed" / f"{digest}.packed")


def _digest(index: bytes) -> bytes:
    return hashlib.sha256(index).hexdigest()[:_DIGEST].encode()


@contextlib.contextmanager
def _whole(part: Path) -> Iterator[BinaryIO]:
    """A new file that goes again if writing fails: what is cut off would only fill the disk further."""
    try:
        with open(part, "wb") as file:
            yield file
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _make_room(folder: Path, need: int) -> bool:
    """Whether a file of `need` bytes may be added; drops files that were not used for longest."""
    if shutil.disk_usage(folder).free < need + SPARE_BYTES or need > FOLDER_BYTES:
        return False
    files = sorted(folder.glob("*.packed"), key=lambda path: path.stat().st_mtime)
    total = sum(path.stat().st_size for path in files)
    for path in files:
        if total + need <= FOLDER_BYTES:
            break
        total -= path.stat().st_size
        path.unlink(missing_ok=True)
    return True
