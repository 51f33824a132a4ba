"""The token budget of a step."""

from octavo.sched.gates.base import Gate, Past
from octavo.sched.request import Request


class TokenGate(Gate):
    """At most `budget` tokens in a step. Every running request has one of them set aside, so a long prompt slows
    those that decode but never stops them."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._left = 0

    def open(self, num_running: int, past: Past) -> None:  # noqa: ARG002 - a gate's signature
        """One token is set aside for each that runs."""
        self._left = self._budget - num_running

    def allow(self, request: Request, num_tokens: int) -> int:
        """What is left."""
        del request
        return min(num_tokens, self._left)

    def spend(self, request: Request, num_tokens: int) -> None:
        """Takes from what is left."""
        del request
        self._left -= num_tokens
