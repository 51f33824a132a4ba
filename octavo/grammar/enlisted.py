"""Processes that follow constraints for an engine: how they are started and ended."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

import octavo
from octavo.grammar.away import Link
from octavo.grammar.child import THREADS
from octavo.grammar.frames import Setup, frame, write_all
from octavo.grammar.rows import Shared


class Enlisted:
    """As many followers, with their links; they take guides once they have said that they are ready."""

    def __init__(self, count: int, shared: Shared, setup: Setup) -> None:
        """Raises OSError where the system has no more processes to give."""
        streams = [socket.socketpair() for _ in range(count)]
        given = [shared.descriptor, *(theirs.fileno() for _, theirs in streams)]
        self.links = [Link(at, ours, shared.first_of(at)) for at, (ours, _) in enumerate(streams)]
        try:
            self.process = subprocess.Popen(
                # -P: never import from the folder that the user happens to stand in.
                [sys.executable, "-P", "-m", "octavo.grammar.follower", str(len(shared.rows)), *map(str, given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=given,
                env={**os.environ, "PYTHONPATH": _python_path(), **dict.fromkeys(THREADS, "1")},
                bufsize=0,
            )
        finally:
            for _, theirs in streams:
                theirs.close()
        # The vocabulary is more than a pipe holds, and the other side has much to import before it reads.
        threading.Thread(target=_tell, args=(self.process, setup), name="octavo-crew", daemon=True).start()

    def end(self) -> None:
        """All of them: they end with the first one, and with their streams."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        for link in self.links:
            link.close()


def _python_path() -> str:
    root = str(Path(octavo.__file__).parents[1])
    return os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)


def _tell(process: "subprocess.Popen[bytes]", setup: Setup) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # it has ended; its links say so
        write_all(process.stdin.fileno(), frame(msgspec.msgpack.encode(setup)))
