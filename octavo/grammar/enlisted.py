"""Processes that follow constraints for an engine: how they are started and ended."""

import contextlib
import socket
import subprocess
import threading

import msgspec

from octavo.grammar.away import Link
from octavo.grammar.frames import Setup, frame, write_all
from octavo.grammar.rows import Shared
from octavo.grammar.spawn import spawn


class Enlisted:
    """As many followers, with their links; they take guides once they have said that they are ready."""

    def __init__(self, count: int, shared: Shared, setup: Setup) -> None:
        """Raises OSError where the system has no more processes to give."""
        streams = [socket.socketpair() for _ in range(count)]
        given = [shared.descriptor, *(theirs.fileno() for _, theirs in streams)]
        self.links = [Link(at, ours, shared.first_of(at)) for at, (ours, _) in enumerate(streams)]
        try:
            self.process = spawn("octavo.grammar.follower", [str(len(shared.rows)), *map(str, given)], given=given)
        except OSError:
            for link in self.links:
                link.close()
            raise
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


def _tell(process: "subprocess.Popen[bytes]", setup: Setup) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # it has ended; its links say so
        write_all(process.stdin.fileno(), frame(msgspec.msgpack.encode(setup)))
