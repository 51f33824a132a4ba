"""Where Octavo keeps files, by the XDG base directory specification. A folder may not exist yet."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/octavo``, else ``~/.cache/octavo``: what may be lost."""
    return _folder("XDG_CACHE_HOME", "~/.cache")


def state_folder() -> Path:
    """``$XDG_STATE_HOME/octavo``, else ``~/.local/state/octavo``: what should last."""
    return _folder("XDG_STATE_HOME", "~/.local/state")


def _folder(variable: str, usual: str) -> Path:
    return Path(os.environ.get(variable) or usual).expanduser() / "octavo"
