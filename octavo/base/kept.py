"""What a start found out, kept for the next one: a file each under ``$XDG_CACHE_HOME/octavo``.

Files are named by a digest of all that they depend on. A missing, foreign or unreadable one only means finding out
anew.
"""

import hashlib
import logging
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from octavo.base.places import cache_folder

log = logging.getLogger(__name__)

MAX_BYTES = 4 << 20
T = TypeVar("T")


def key_of(*facts: object) -> str:
    """A name for what depends on these facts, which must have stable texts."""
    return hashlib.sha256("\n".join(map(repr, facts)).encode()).hexdigest()[:32]


def recall(folder: str, key: str, kind: type[T]) -> T | None:
    """What was kept under this key before."""
    try:
        with _file(folder, key).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def remember(folder: str, key: str, value: object) -> None:
    """Keep it, whole or not at all; a folder that cannot be written is no fault."""
    path = _file(folder, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(msgspec.json.encode(value))
                file.flush()
                Path(file.name).replace(path)
            except OSError:  # a full disk gets no file that is cut off
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        log.debug("%s/%s is not kept: %s", folder, key, error)


def _file(folder: str, key: str) -> Path:
    return cache_folder() / folder / f"{key}.json"
