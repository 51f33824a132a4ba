"""Where kept things lie, and the lock that makes one server their only writer."""

import os
from dataclasses import dataclass
from pathlib import Path

from octavo.base.errors import ConfigError
from octavo.base.places import state_folder


@dataclass(frozen=True)
class Place:
    """A file or folder. `chosen`: the operator named it, so that failing to use it is an error."""

    path: Path
    chosen: bool

    @staticmethod
    def of(given: str | None, port: int, name: str) -> "Place":
        """The given path, else `name` in the state folder of the server on this port."""
        if given is not None:
            return Place(Path(given).expanduser(), chosen=True)
        return Place(state_folder() / f"port-{port}" / name, chosen=False)


class Lock:
    """Held as long as it exists: a second server with the same place must not write there too."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when another process has it, OSError when it cannot be made."""
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise ConfigError(f"{path.with_suffix('')} is in use by another server") from None

    def release(self) -> None:
        """Lets others in."""
        os.close(self._file)
