"""Prompts that come together take turns, so that those in front are answered before those behind are computed."""

from octavo.sched.gates.base import Gate, Past
from octavo.sched.request import Request


class CrowdGate(Gate):
    """Bounds what several prompts may compute in one step; the first of a step may have all of it. 0: no bound.

    All that a step computes is answered at its end. Beyond some thousands of tokens a larger one is no faster, and
    who could have been answered halfway only waits.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._spent = 0

    def open(self, num_running: int, past: Past) -> None:  # noqa: ARG002 - a gate's signature
        """Nothing is spent; the tokens that those who decode are sure of do not count."""
        self._spent = 0

    def allow(self, request: Request, num_tokens: int) -> int:
        """What the first of the step has left of the bound."""
        del request
        if not self._tokens or not self._spent:
            return num_tokens
        return min(num_tokens, max(0, self._tokens - self._spent))

    def spend(self, request: Request, num_tokens: int) -> None:
        """Counts."""
        del request
        self._spent += num_tokens
