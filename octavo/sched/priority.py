"""The policy priority: a lower value goes first, and may take the place of a higher one that runs."""

from collections.abc import Sequence

from octavo.sched.queue import WaitingQueue
from octavo.sched.request import Order, Request

MAX_PREEMPTIONS = 3
"""After so many a request keeps its place and its blocks against others, however urgent: it has lost enough work."""


class PriorityQueue(WaitingQueue):
    """By `priority`, then by arrival, as in vLLM."""

    name = "priority"

    def order(self, priority: int, arrival: int) -> Order:
        return priority, arrival

    def rank(self, running: list[Request]) -> None:
        """Those that have lost enough come before all others, in an order that never changes."""
        running.sort(key=lambda request: (request.preemptions < MAX_PREEMPTIONS, request.order))

    def yielding(self, request: Request, running: Sequence[Request]) -> Sequence[Request]:
        """Those of a higher value, the last in order first."""
        urgency = request.order[0]
        lower = [each for each in running if each.order[0] > urgency and each.preemptions < MAX_PREEMPTIONS]
        return sorted(lower, key=lambda each: each.order, reverse=True)
