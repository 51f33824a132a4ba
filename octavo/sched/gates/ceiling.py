"""Smaller steps for a while: what is left to do when the device has no memory for larger ones."""

from octavo.sched.gates.base import Gate, Past
from octavo.sched.gates.rows import RowPool
from octavo.sched.request import NO_ROW, Request


class CeilingGate(Gate):
    """At most `rows` requests and about `tokens` tokens in a step; None: no bound. Every running request still gets
    its one token, so a bound holds for those that start after it was set."""

    def __init__(self, pool: RowPool) -> None:
        self._pool = pool
        self.num_rows = pool.num_free
        self._left: int | None = None
        self.rows: int | None = None
        self.tokens: int | None = None

    def open(self, num_running: int, past: Past) -> None:  # noqa: ARG002 - a gate's signature
        """One token is set aside for each that runs."""
        self._left = None if self.tokens is None else max(0, self.tokens - num_running)

    def allow(self, request: Request, num_tokens: int) -> int:
        """What is left; nothing for a newcomer beyond the rows."""
        if request.row == NO_ROW and self.rows is not None and self.num_rows - self._pool.num_free >= self.rows:
            return 0
        return num_tokens if self._left is None else min(num_tokens, self._left)

    def spend(self, request: Request, num_tokens: int) -> None:
        """Takes from what is left."""
        del request
        if self._left is not None:
            self._left -= num_tokens
