"""The waiting line: bounded for newcomers, in the order of the policy, with removal from anywhere."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from octavo.base.errors import ConfigError, Overloaded, UserError
from octavo.sched.limits import Limits
from octavo.sched.request import Order, Request


class WaitingQueue:
    """Requests by `Request.order`. Removed ones stay in the heap until they come up; `_members` is the truth."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._heap: list[Order] = []
        self._members: dict[Order, Request] = {}
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        """All that wait, in no order."""
        return iter(self._members.values())

    @property
    def num_tokens(self) -> int:
        """Prompt tokens that wait."""
        return self._tokens

    def check_room(self, num_tokens: int) -> None:
        """Overloaded if one more newcomer is one too many. Preempted requests always have room."""
        if len(self._members) >= self._max_requests:
            raise Overloaded(f"{self._max_requests} requests are waiting already; try again later")
        if self._members and self._tokens + num_tokens > self._max_tokens:
            raise Overloaded(f"the prompts that wait already hold {self._tokens} tokens; try again later")

    def push(self, request: Request) -> None:
        """Into its place by order; never refused."""
        self._members[request.order] = request
        self._tokens += request.num_prompt
        heappush(self._heap, request.order)

    def peek(self) -> Request | None:
        """The next one, or None."""
        heap, members = self._heap, self._members
        while heap:
            request = members.get(heap[0])
            if request is not None:
                return request
            heappop(heap)
        return None

    def remove(self, request: Request) -> None:
        """From anywhere in the line."""
        del self._members[request.order]
        self._tokens -= request.num_prompt
        if len(self._heap) > 2 * len(self._members) + 64:
            self._heap = list(self._members)
            heapify(self._heap)


def order_of(limits: Limits, priority: int, arrival: int) -> Order:
    """Place in line under the configured policy. Ties go to the earlier arrival, so the order is total and stable."""
    if limits.scheduling_policy == "priority":
        return priority, arrival
    if limits.scheduling_policy != "fcfs":
        raise ConfigError(f"unknown scheduling policy {limits.scheduling_policy!r}; known: fcfs, priority")
    if priority:
        raise UserError("priority needs a server that runs with --scheduling-policy priority", param="priority")
    return 0, arrival


def waited_too_long(seconds: float) -> Overloaded:
    """What a request is told that did not get its turn in time."""
    return Overloaded(f"the request waited {seconds:g} s and did not get its turn; try again later", retry_after_s=5.0)
