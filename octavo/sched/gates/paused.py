"""Nobody starts: the device is about to give its memory back, or has done so."""

from octavo.sched.gates.base import Gate
from octavo.sched.request import NO_ROW, Request


class PausedGate(Gate):
    """While `closed`, waiting requests wait; those that run go on at their pace."""

    def __init__(self) -> None:
        self.closed = False

    def allow(self, request: Request, num_tokens: int) -> int:
        """All, unless it would have to start."""
        return 0 if self.closed and request.row == NO_ROW else num_tokens
