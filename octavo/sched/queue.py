"""The waiting line: bounded for newcomers, in the order of the policy, with removal from anywhere.

`WaitingQueue` is the policy fcfs and the frame of the others: sched/priority.py and sched/fair.py change what they
must, sched/policies.py knows them by name.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from octavo.base.clock import Clock
from octavo.base.errors import Overloaded, UserError
from octavo.base.rate import ROOM_SHARE, Rate
from octavo.sched.limits import Limits
from octavo.sched.request import Order, Request


class Line:
    """Requests by `Request.order`. Removed ones stay in the heap until they come up; `members` is the truth."""

    __slots__ = ("_heap", "members")

    def __init__(self) -> None:
        self.members: dict[Order, Request] = {}
        self._heap: list[Order] = []

    def push(self, request: Request) -> None:
        """Into its place by order."""
        self.members[request.order] = request
        heappush(self._heap, request.order)

    def peek(self) -> Request | None:
        """The first one, or None."""
        heap, members = self._heap, self.members
        while heap:
            request = members.get(heap[0])
            if request is not None:
                return request
            heappop(heap)
        return None

    def remove(self, request: Request) -> None:
        """From anywhere in the line."""
        del self.members[request.order]
        if len(self._heap) > 2 * len(self.members) + 64:
            self._heap = list(self.members)
            heapify(self._heap)


class WaitingQueue:
    """First come, first served."""

    name = "fcfs"

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._max_requests = limits.max_waiting
        self._max_tokens = limits.max_waiting_tokens
        self._line = Line()
        self._tokens = 0
        self._starts = Rate(clock)

    def __len__(self) -> int:
        return len(self._line.members)

    def __iter__(self) -> Iterator[Request]:
        """All that wait, in no order."""
        return iter(self._line.members.values())

    @property
    def num_tokens(self) -> int:
        """Prompt tokens that wait."""
        return self._tokens

    # --- newcomers

    def order(self, priority: int, arrival: int) -> Order:
        """Place in line. Ties go to the earlier arrival, so the order is total and stable."""
        if priority:
            raise UserError("priority needs a server that runs with --scheduling-policy priority", param="priority")
        return 0, arrival

    def check_room(self, num_tokens: int) -> None:
        """Overloaded if one more newcomer is one too many. Preempted requests always have room."""
        if len(self) >= self._max_requests:
            raise self._full(f"{self._max_requests} requests are waiting already; try again later")
        if len(self) and self._tokens + num_tokens > self._max_tokens:
            raise self._full(f"the prompts that wait already hold {self._tokens} tokens; try again later")

    def too_late(self, seconds: float) -> Overloaded:
        """What a request is told that did not get its turn in time."""
        return self._full(f"the request waited {seconds:g} s and did not get its turn; try again later")

    # --- the line

    def push(self, request: Request) -> None:
        """Into its place by order; never refused."""
        self._line.push(request)
        self._tokens += request.num_prompt

    def peek(self) -> Request | None:
        """The next one, or None."""
        return self._line.peek()

    def remove(self, request: Request) -> None:
        """From anywhere in the line."""
        self._line.remove(request)
        self._tokens -= request.num_prompt

    def take(self, request: Request) -> None:
        """Out of the line to run: `computed` says what of it the cache has."""
        self.remove(request)
        if not request.started:
            self._starts.note()

    # --- those that run

    def account(self, running: Sequence[Request]) -> None:
        """A step is about to be planned: take note of what these have been given since the last one."""

    def rank(self, running: list[Request]) -> None:
        """Blocks are short: put those last that give theirs up first. It is in order already."""

    def yielding(self, request: Request, running: Sequence[Request]) -> Sequence[Request]:
        """Those that give way to this waiting request, the first to go first. None: who runs, runs."""
        del request, running
        return ()

    def _full(self, message: str) -> Overloaded:
        return Overloaded(message, retry_after_s=self._starts.wait_s(ROOM_SHARE * len(self)))
