"""The fair line against a naive model of the paper's algorithm, under any order of events."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.base.clock import FakeClock
from octavo.base.wire import EngineRequest, Sampling
from octavo.kv.hashing import HashChain, chain_seed
from octavo.kv.holding import Holding
from octavo.sched.fair import OUTPUT_WEIGHT, PROMPT_WEIGHT, FairQueue
from octavo.sched.limits import Limits
from octavo.sched.request import Request

LIMITS = Limits(max_model_len=100, max_num_seqs=4, max_num_batched_tokens=64)
TENANTS = st.sampled_from(["", "a", "b", "c"])


class FairMachine(RuleBasedStateMachine):
    """`served` is what the model says each tenant got; `line` who waits, in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue(LIMITS, FakeClock())
        self.line: list[Request] = []
        self.running: list[Request] = []
        self.served: dict[str, int] = {}
        self.last = ""
        self.arrivals = 0
        self.fresh: set[str] = set()

    def enter(self, request: Request) -> None:
        if all(each.tenant != request.tenant for each in self.line):
            self.fresh.add(request.tenant)
        self.line.append(request)
        self.line.sort(key=lambda each: each.order)
        self.queue.push(request)

    def leave(self, request: Request) -> None:
        self.line.remove(request)
        if all(each.tenant != request.tenant for each in self.line):
            self.last = request.tenant
            self.fresh.discard(request.tenant)

    def expected(self) -> Request | None:
        """Lifts, then picks, by looking at everybody."""
        old = [self.served[each.tenant] for each in self.line if each.tenant not in self.fresh]
        floor = min(old) if old else self.served.get(self.last, 0)
        for tenant in self.fresh:
            self.served[tenant] = max(self.served.get(tenant, 0), floor)
        self.fresh.clear()
        return min(self.line, key=lambda each: (self.served[each.tenant], each.order), default=None)

    @rule(tenant=TENANTS, prompt=st.integers(1, 30))
    def arrive(self, tenant: str, prompt: int) -> None:
        wire = EngineRequest(
            id=str(self.arrivals), tokens=[1] * prompt, sampling=Sampling(seed=0, max_tokens=50), tenant=tenant
        )
        self.enter(Request(wire, (0, self.arrivals), Holding(1, HashChain(16, chain_seed())), 100))
        self.arrivals += 1

    @rule(cached=st.integers(0, 5))
    def start(self, cached: int) -> None:
        first = self.expected()
        assert self.queue.peek() is first
        if first is None:
            return
        first.computed = min(cached, first.num_prompt - 1)
        if not first.started:
            self.served[first.tenant] += PROMPT_WEIGHT * (first.num_prompt - first.computed)
        self.queue.take(first)
        first.cached_tokens = max(first.cached_tokens, first.computed)
        self.leave(first)
        self.running.append(first)

    @precondition(lambda self: self.running)
    @rule(made=st.lists(st.integers(0, 4), min_size=1, max_size=8))
    def compute(self, made: list[int]) -> None:
        for request, count in zip(self.running, made):
            request.line += [2] * count
            self.served[request.tenant] = self.served.get(request.tenant, 0) + OUTPUT_WEIGHT * count
        self.queue.account(self.running)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 100))
    def preempt(self, pick: int) -> None:
        self.enter(self.running.pop(pick % len(self.running)))

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 100))
    def end(self, pick: int) -> None:
        request = self.running.pop(pick % len(self.running))
        self.queue.account((request,))

    @precondition(lambda self: self.line)
    @rule(pick=st.integers(0, 100))
    def abort(self, pick: int) -> None:
        request = self.line[pick % len(self.line)]
        self.leave(request)
        self.queue.remove(request)

    @invariant()
    def holds(self) -> None:
        assert sorted(each.id for each in self.queue) == sorted(each.id for each in self.line)
        assert len(self.queue) == len(self.line)
        assert self.queue.num_tokens == sum(each.num_prompt for each in self.line)
        self.queue.account(self.running)
        for tenant in self.served.keys() - self.fresh:
            assert self.queue.served(tenant) == self.served[tenant]


TestFair = FairMachine.TestCase
TestFair.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
