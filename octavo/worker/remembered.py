"""What a start measured, kept for the next one: the same model, settings, device and versions need no second look.

A file a measurement under ``$XDG_CACHE_HOME/octavo/plans``, named by a digest of all that it depends on. A missing,
foreign or unreadable file only means measuring again.
"""

import hashlib
import logging
import tempfile
from pathlib import Path

import msgspec

from octavo.base.places import cache_folder
from octavo.worker.capacity import Need

log = logging.getLogger(__name__)

EDITION = 2  # of the steps that are measured: counted up where they come to need more memory within a version


def key_of(*facts: object) -> str:
    """A name for a measurement; the facts must have stable texts."""
    return hashlib.sha256("\n".join(map(repr, (EDITION, *facts))).encode()).hexdigest()[:32]


def recall(key: str) -> Need | None:
    """What was measured under this key before."""
    try:
        return msgspec.json.decode(_file(key).read_bytes(), type=Need)
    except (OSError, msgspec.MsgspecError):
        return None


def remember(key: str, need: Need) -> None:
    """Keep a measurement; a folder that cannot be written is no fault."""
    path = _file(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(msgspec.json.encode(need))
                file.flush()
                Path(file.name).replace(path)
            except OSError:  # a full disk gets no file that is cut off
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        log.debug("the measurement is not kept: %s", error)


def _file(key: str) -> Path:
    return cache_folder() / "plans" / f"{key}.json"
