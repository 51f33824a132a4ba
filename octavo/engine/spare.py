"""An engine process that begins before anybody has said what it is for: it imports what takes longest meanwhile.

Standard library only, so that the command line can start it before it imports the server.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import octavo

AHEAD = "--ahead"
FOR_CPU = "--cpu"

_spare: "subprocess.Popen[bytes] | None" = None


def prepare(device: str = "auto") -> None:
    """Start one, for the first engine that is launched. If that never comes, it ends with this process.

    `device`: as the configuration names it.
    """
    global _spare  # noqa: PLW0603 - one a process, from its first moments on
    if _spare is None:
        _spare = start(AHEAD, *([FOR_CPU] if device == "cpu" else []))


def drop() -> None:
    """End the one that was prepared, if nobody took it."""
    global _spare
    process, _spare = _spare, None
    if process is not None:
        process.kill()
        process.wait()


def take() -> "subprocess.Popen[bytes] | None":
    """The process that was prepared, if it still lives."""
    global _spare
    process, _spare = _spare, None
    return process if process is not None and process.poll() is None else None


def start(*more: str) -> "subprocess.Popen[bytes]":
    """An engine process that waits for its orders. What it prints goes to standard error."""
    return subprocess.Popen(
        # -P: never import from the folder that the user happens to stand in.
        [sys.executable, "-P", "-m", "octavo.engine.proc", *more],
        stdin=subprocess.PIPE,
        stdout=2,
        env=_environment(),
        start_new_session=True,  # a signal to the server's group (Ctrl-C, timeout) must not end it under a drain
    )


def _environment() -> dict[str, str]:
    """Ours; when octavo runs from a source tree the child must find that tree."""
    environment = dict(os.environ)
    root = Path(octavo.__file__).resolve().parents[1]
    if root not in (Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")):
        paths = [str(root), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
