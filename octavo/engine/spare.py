"""An engine process that begins before anybody has said what it is for: it imports what takes longest meanwhile.

Standard library only, so that the command line can start it before it imports the server.
"""

import os
import subprocess
import sys
import sysconfig
import threading
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
        _spare = subprocess.Popen(
            command(AHEAD, *([FOR_CPU] if device == "cpu" else [])),
            stdin=subprocess.PIPE,
            stdout=2,
            env=environment(),
            start_new_session=True,
        )


def drop() -> None:
    """End the one that was prepared, if nobody took it."""
    global _spare
    process, _spare = _spare, None
    if process is not None:
        process.kill()
        process.wait()


def take() -> "Started | None":
    """The process that was prepared, if it still lives; to be asked in the event loop that will wait for it."""
    global _spare
    process, _spare = _spare, None
    return Started(process) if process is not None and process.poll() is None else None


def command(*more: str) -> list[str]:
    """How an engine process is started."""
    # -P: never import from the folder that the user happens to stand in.
    return [sys.executable, "-P", "-m", "octavo.engine.proc", *more]


def environment() -> dict[str, str]:
    """Ours; when octavo runs from a source tree the child must find that tree."""
    environment = dict(os.environ)
    root = Path(octavo.__file__).resolve().parents[1]
    if root not in (Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")):
        paths = [str(root), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


class Started:
    """A process that runs already, with what engine/process.py uses of asyncio's own."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        import asyncio

        self._process = process
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()

        def settle(code: int) -> None:
            if not self._ended.done():
                self._ended.set_result(code)

        def wait() -> None:
            code = process.wait()
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, code)

        threading.Thread(target=wait, daemon=True, name="octavo-engine-wait").start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Its exit code, or minus the number of the signal that ended it."""
        import asyncio

        return await asyncio.shield(self._ended)

    def write(self, data: bytes) -> None:
        """Its orders; they fit the pipe. Raises ConnectionError."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def close_input(self) -> None:
        """It leaves when it sees this."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()
