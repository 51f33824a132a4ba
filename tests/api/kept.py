"""A server that keeps things, in a folder of the test's own."""

from pathlib import Path
from typing import Any

from api_live import Live, backend, config


def keeping(folder: Path, **serve: Any) -> Live:
    """A server with stores under `folder`; a second one with the same folder finds what the first has left."""
    return Live(
        config(response_store=str(folder / "responses.sqlite"), files_dir=str(folder / "files"), **serve), backend()
    )
