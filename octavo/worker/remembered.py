"""What a start measured of memory, kept for the next one: the same model, settings, device and versions need no second
look."""

from octavo.base import kept
from octavo.worker.capacity import Need

EDITION = 2  # of the steps that are measured: counted up where they come to need more memory within a version
_FOLDER = "plans"


def key_of(*facts: object) -> str:
    """A name for a measurement; the facts must have stable texts."""
    return kept.key_of(EDITION, *facts)


def recall(key: str) -> Need | None:
    """What was measured under this key before."""
    return kept.recall(_FOLDER, key, Need)


def remember(key: str, need: Need) -> None:
    """Keep a measurement."""
    kept.remember(_FOLDER, key, need)
