"""Where Octavo keeps what it may lose."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/octavo``, else ``~/.cache/octavo``. May not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "octavo"
