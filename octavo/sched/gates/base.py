"""Gate: one reason why a request may have to wait, or get fewer tokens, in this step.

The scheduler asks an ordered list of gates, fixed at assembly. A feature that limits admission adds a gate; the
scheduler's loop does not change.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from octavo.sched.request import Request

Past = Callable[[], int]
"""Tokens that lie behind those of the running who compute one token a step. Costs a look at their numbers."""


HOLD = -1
"""Instead of a number of tokens: a running request waits, without the token that it is sure of."""


class Gate(ABC):
    """Asked for every waiting request, and for running ones that want more than one token."""

    def open(self, num_running: int, past: Past) -> None:  # noqa: B027 - many do not change with the step
        """A new step begins with this many running requests, each of which is sure of one token."""

    @abstractmethod
    def allow(self, request: Request, num_tokens: int) -> int:
        """How many of `num_tokens` the request may compute beyond what it is sure of. Spends nothing.

        HOLD, for a running one, if it is to wait: somebody else must be getting on in this step then.
        """

    def spend(self, request: Request, num_tokens: int) -> None:  # noqa: B027 - many have nothing that is used up
        """The request was planned with this many such tokens."""
