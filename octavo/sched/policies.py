"""The scheduling policies by name."""

from octavo.base.clock import Clock
from octavo.base.errors import UnknownName
from octavo.sched.fair import FairQueue
from octavo.sched.limits import Limits
from octavo.sched.priority import PriorityQueue
from octavo.sched.queue import WaitingQueue

POLICIES: dict[str, type[WaitingQueue]] = {kind.name: kind for kind in (WaitingQueue, PriorityQueue, FairQueue)}


def make_queue(limits: Limits, clock: Clock) -> WaitingQueue:
    """The line of the configured policy. UnknownName for one that is not there."""
    kind = POLICIES.get(limits.scheduling_policy)
    if kind is None:
        raise UnknownName("scheduling policy", limits.scheduling_policy, POLICIES)
    return kind(limits, clock)
