"""The policy fair: keys share the engine by what they are given, not by how much they ask.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): each tenant has a
counter of the service it got, prompt tokens and output tokens weighed; the next to start is the first in the line of
the tenant with the lowest counter. It is work-conserving: nobody waits while there is room. A tenant that comes back
is lifted to the lowest counter of those that wait, so nobody saves service up. With one tenant it is fcfs.

The counters also say who gives blocks up when they are short: the latest request of the tenant that got most. A
request that was preempted often is spared from then on, so the turns of tenants cannot keep each other from ending.
"""

from collections.abc import Iterator, Sequence

from octavo.base.clock import Clock
from octavo.sched.limits import Limits
from octavo.sched.priority import MAX_PREEMPTIONS
from octavo.sched.queue import Line, WaitingQueue
from octavo.sched.request import Order, Request

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2  # the paper's: a step yields one output token, or computes many of a prompt
MAX_TENANTS = 4096  # counters kept; those that a lift would raise anyway go first


class FairQueue(WaitingQueue):
    """A line for each tenant that waits."""

    name = "fair"

    def __init__(self, limits: Limits, clock: Clock) -> None:
        super().__init__(limits, clock)
        self._lines: dict[str, Line] = {}
        self._served: dict[str, int] = {}
        self._joined: set[str] = set()  # those that began to wait and were not lifted yet
        self._last = ""  # the tenant whose line emptied last
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        for line in self._lines.values():
            yield from line.members.values()

    def served(self, tenant: str) -> int:
        """Weighed tokens; only differences mean anything."""
        return self._served.get(tenant, 0)

    def push(self, request: Request) -> None:
        tenant = request.tenant
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = Line()
            self._joined.add(tenant)
        line.push(request)
        self._size += 1
        self._tokens += request.num_prompt

    def peek(self) -> Request | None:
        """The first in line of the tenant that got least; among equals the one that came first."""
        if self._joined:
            self._lift()
        best: Request | None = None
        best_key: tuple[int, Order] | None = None
        for tenant, line in self._lines.items():
            head = line.peek()
            if head is not None:
                key = (self._served[tenant], head.order)
                if best_key is None or key < best_key:
                    best, best_key = head, key
        return best

    def remove(self, request: Request) -> None:
        tenant = request.tenant
        line = self._lines[tenant]
        line.remove(request)
        self._size -= 1
        self._tokens -= request.num_prompt
        if not line.members:
            del self._lines[tenant]
            self._joined.discard(tenant)
            self._last = tenant

    def take(self, request: Request) -> None:
        """Its prompt counts from now on, so that those who start in one step take turns; hits cost nothing, and
        what is computed again after a preemption is not the tenant's fault."""
        if not request.started:
            self._add(request.tenant, PROMPT_WEIGHT * (request.num_prompt - request.computed))
        super().take(request)

    def account(self, running: Sequence[Request]) -> None:
        """Output counts before anybody is lifted: what a tenant got while it was alone is no debt to those who come."""
        for request in running:
            made = len(request.line) - request.billed
            if made:
                request.billed += made
                self._add(request.tenant, OUTPUT_WEIGHT * made)

    def rank(self, running: list[Request]) -> None:
        if len(self._served) > 1:
            self.account(running)
            running.sort(key=self._claim)

    def _claim(self, request: Request) -> tuple[bool, int, Order]:
        """Smaller keeps its blocks longer. Those who are spared stand in an order that never changes."""
        if request.preemptions >= MAX_PREEMPTIONS:
            return False, 0, request.order
        return True, self._served.get(request.tenant, 0), request.order

    def _add(self, tenant: str, amount: int) -> None:
        self._served[tenant] = self._served.get(tenant, 0) + amount

    def _lift(self) -> None:
        """Bring those that begin to wait up to the others: to the lowest that waits, or, if none did, to the last."""
        served, joined = self._served, self._joined
        floor = min((served[tenant] for tenant in self._lines if tenant not in joined), default=None)
        if floor is None:
            floor = served.get(self._last, 0)
        for tenant in joined:
            served[tenant] = max(served.get(tenant, 0), floor)
        joined.clear()
        if len(served) > MAX_TENANTS:
            self._served = {name: count for name, count in served.items() if count > floor or name in self._lines}
