"""Simulation of the plan side: a scheduler, a fake executor and a hostile caller, all under one seed.

After each step every invariant is checked, and each request that ends is held against the pure function that the
fake model is: whatever the batch, the schedule, preemption, prefix hits or the number of steps in flight.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

from octavo.base.clock import FakeClock
from octavo.base.errors import EngineError, UserError
from octavo.base.plan import PAD_BLOCK, StepPlan
from octavo.base.scores import TokenLogprobs, read
from octavo.base.specs import KVGroup, KVLayout, KVSpec
from octavo.base.wire import EngineRequest, Sampling, TokenOutput
from octavo.sched.limits import Limits
from octavo.sched.request import State
from octavo.sched.scheduler import Scheduler
from octavo.testing.fake_executor import FakeExecutor, FakePending, expected_tokens, fake_logprobs


@dataclass(kw_only=True)
class World:
    """What a simulation runs in. `windows` holds one entry a KV group, None for full attention."""

    windows: tuple[int | None, ...] = (None,)
    block_size: int = 4
    num_blocks: int = 24
    depth: int = 2
    vocab_size: int = 5
    fail_rate: float = 0.0
    give_up_rate: float = 0.2  # of failed steps that end their requests
    bad_rate: float = 0.0
    limits: Limits = field(default_factory=lambda: Limits(max_model_len=48, max_num_seqs=6, max_num_batched_tokens=16))

    def layout(self) -> KVLayout:
        """The KV layout that these sizes make."""
        groups = tuple(KVGroup(KVSpec(1, 8, window), (i,)) for i, window in enumerate(self.windows))
        return KVLayout(groups=groups, block_size=self.block_size, num_blocks=self.num_blocks, dtype_bytes=2)


@dataclass
class _Seen:
    """What came back for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish: str | None = None


class Simulation:
    """Drives a scheduler as the engine's core does, with up to `depth` steps in flight."""

    def __init__(self, world: World, seed: int = 0) -> None:
        self.world = world
        self.random = Random(seed)
        self.scheduler = Scheduler(world.layout(), world.limits)
        self.fake = FakeExecutor(
            world.vocab_size,
            clock=FakeClock(),
            max_rows=world.limits.max_rows,
            max_tokens=world.limits.max_num_batched_tokens,
        )
        self.fake.start(world.layout())
        self.in_flight: deque[tuple[StepPlan, FakePending]] = deque()
        self.requests: dict[str, EngineRequest] = {}
        self.seen: dict[str, _Seen] = {}
        self.refused = 0
        self.salts: dict[bytes, str] = {}  # digest -> the salt of those who may use it
        self.finishes: Counter[str] = Counter()

    # --- what may happen

    def add(self, request: EngineRequest) -> bool:
        """False if the scheduler refused it."""
        try:
            self.scheduler.add(request)
        except UserError:
            self.refused += 1
            return False
        self.requests[request.id] = request
        self.seen[request.id] = _Seen()
        if self.random.random() < self.world.bad_rate:
            self.fake.bad_logits.add(request.id)
        return True

    def abort(self, *ids: str) -> None:
        """As a client that goes away does."""
        self._take(self.scheduler.abort(ids))

    def launch(self) -> bool:
        """Plan one more step, if `depth` allows and there is anything to compute."""
        if len(self.in_flight) >= self.world.depth:
            return False
        plan = self.scheduler.plan()
        if plan is None:
            assert self.in_flight or not self.scheduler.has_work, "work is left, nothing runs, nothing is planned"
            return False
        if self.random.random() < self.world.fail_rate:
            self.fake.fail_steps.add(plan.step)
        self.fake.forward(plan)
        self.in_flight.append((plan, self.fake.sample({})))
        return True

    def land(self) -> bool:
        """Take the oldest result."""
        if not self.in_flight:
            return False
        plan, pending = self.in_flight.popleft()
        try:
            result = pending.result()
        except EngineError as error:
            lost = [plan, *(plan for plan, _ in self.in_flight)]
            self.in_flight.clear()
            ids = list(self.scheduler.reached(plan))
            self.scheduler.retreat(lost)
            if self.random.random() < self.world.give_up_rate:
                self._take(self.scheduler.reject(ids, str(error)))
        else:
            self._take(self.scheduler.update(plan, result).each())
        return True

    def step(self) -> None:
        """Fill the pipeline, take one result, check everything."""
        while self.launch():
            self.check()
        self.land()
        self.check()

    def drain(self, max_steps: int = 100_000) -> None:
        """Until all have ended: within `max_steps`, or somebody starves."""
        for _ in range(max_steps):
            if not self.scheduler.has_work and not self.in_flight:
                break
            self.step()
        else:
            raise AssertionError(f"still at work after {max_steps} steps")
        self.check()
        board = self.scheduler.board
        assert board.kv.pool.num_used == 0, "an idle pool has blocks in use"
        assert board.rows.num_free == self.world.limits.max_rows, "an idle table has rows in use"
        assert len(board.waiting) == board.waiting.num_tokens == 0
        assert all(seen.finish for seen in self.seen.values()), "a request never ended"

    def random_event(self) -> None:
        """Something that a server may see."""
        dice = self.random.random()
        if dice < 0.1:
            for _ in range(self.random.randrange(1, 9)):
                self.add(self.random_request())
        elif dice < 0.13 and self.scheduler.board.requests:
            self.abort(self.random.choice(sorted(self.scheduler.board.requests)), "no such request")
        elif dice < 0.4:
            self.launch()
        else:
            self.step()
        self.check()

    def random_request(self) -> EngineRequest:
        """Prompts share beginnings, so that the prefix cache has work."""
        random, vocab, longest = self.random, self.world.vocab_size, self.world.limits.max_model_len
        story = random.randrange(2)
        common = [(7 * i + story * (i // 9)) % vocab for i in range(random.choice([0, 4, 9, longest // 2]))]
        earlier = random.choice(sorted(self.requests)) if self.requests and random.random() < 0.3 else None
        if earlier is not None:  # the next turn of a conversation: an old prompt and its answer
            common = self.requests[earlier].tokens + self.seen[earlier].tokens
        prompt = common + [random.randrange(vocab) for _ in range(random.randrange(1, longest // 4))]
        max_tokens = random.choice([1, 3, 12, 24, 40])
        sampling = Sampling(
            seed=random.randrange(3),
            max_tokens=max_tokens,
            min_tokens=random.choice([0, 0, min(3, max_tokens)]),
            temperature=random.choice([0.0, 1.0]),
            eos_token_ids=random.choice([(), (), (0,)]),
            stop_token_ids=random.choice([(), (), (), (1, 2)]),
            logprobs=random.choice([-1, -1, 0, 2]),
            prompt_logprobs=random.choice([-1, -1, -1, 1]),
        )
        return EngineRequest(
            id=f"r{len(self.requests) + self.refused}",
            tokens=prompt,
            sampling=sampling,
            priority=random.randrange(3) if self.world.limits.scheduling_policy == "priority" else 0,
            cache_salt=random.choice(["", "", "salt"]),
            tenant=random.choice(["", "one", "two"]),
        )

    # --- what must hold

    def _take(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            seen = self.seen[output.id]
            assert seen.finish is None, f"{output.id} goes on after its end"
            seen.tokens += output.tokens
            seen.logprobs += read(output.logprobs)
            seen.prompt_logprobs += read(output.prompt_logprobs)
            seen.finish = output.finish
            if output.finish is not None:
                self.finishes[output.finish] += 1
                self._judge(self.requests[output.id], seen)

    def _judge(self, request: EngineRequest, seen: _Seen) -> None:
        sampling, prompt = request.sampling, request.tokens
        want, reason = expected_tokens(self.fake.next_token, prompt, sampling, self.world.limits.max_model_len)
        if seen.finish in ("abort", "error"):
            assert seen.tokens == want[: len(seen.tokens)], f"{request.id}: tokens differ"
        else:
            assert (seen.tokens, seen.finish) == (want, reason), f"{request.id}: tokens differ"
        if sampling.logprobs >= 0:
            line = prompt + seen.tokens
            places = range(len(prompt), len(line))
            assert seen.logprobs == [
                fake_logprobs(line[:p], line[p], sampling.logprobs, self.fake.vocab_size) for p in places
            ]
        if sampling.prompt_logprobs >= 0:
            places = range(1, len(prompt))
            scores: list[TokenLogprobs | None] = [None]
            scores += [
                fake_logprobs(prompt[:p], prompt[p], sampling.prompt_logprobs, self.fake.vocab_size) for p in places
            ]
            if seen.finish in ("abort", "error"):
                scores = scores[: len(seen.prompt_logprobs)]
            assert seen.prompt_logprobs == scores, f"{request.id}: prompt log-probabilities differ"

    def check(self) -> None:
        """Every block has its owners, every request its place, and every findable block what it says."""
        self._check_requests()
        self._check_blocks()
        self._check_index()

    def _check_requests(self) -> None:
        board, limits = self.scheduler.board, self.world.limits
        running = board.running
        assert len(running) + len(board.waiting) == len(board.requests)
        if limits.scheduling_policy == "fcfs":  # the others rank those who run
            assert running == sorted(running, key=lambda request: request.order)
        rows = [request.row for request in running]
        assert len(set(rows)) == len(rows) == limits.max_rows - board.rows.num_free
        # Tokens are written down when somebody reads them: not at every look here, so that the scheduler does so too.
        reads = board.counters.steps % 5 == 0
        for request in board.requests.values():
            assert request.state in (State.RUNNING, State.WAITING)
            assert len(request.tokens if reads else request.line) <= request.known <= request.limit
            assert request.computed < request.known
            assert request.computed <= request.holding.capacity
            assert (request.row >= 0) == (request.state is State.RUNNING) == (request in running)
        stats = self.scheduler.stats()
        assert 0 <= stats.kv_waste <= 1
        assert 0 <= stats.kv_usage <= 1

    def _check_blocks(self) -> None:
        kv = self.scheduler.board.kv
        owners: Counter[int] = Counter()
        for request in self.scheduler.board.running:
            holding = request.holding
            for group, table in enumerate(holding.tables):
                first = kv.policies[group].first_block(request.computed)
                assert len(table) * kv.block_size == holding.capacity
                assert not any(table[: holding.first_live[group]])
                assert all(table[first:]), "a block that may still be read is gone"
                owners.update(block for block in table if block)
        free = kv.pool.free_blocks()
        assert [owners[block] for block in range(kv.pool.num_blocks)] == kv.pool.refs
        assert len(free) == kv.pool.num_free == len(set(free))
        assert PAD_BLOCK not in free
        assert {block for block in range(1, kv.pool.num_blocks) if kv.pool.refs[block] == 0} == set(free)
        assert kv.capacity == sum(request.holding.capacity for request in self.scheduler.board.running)

    def _check_index(self) -> None:
        kv = self.scheduler.board.kv
        findable = [block for block in range(kv.pool.num_blocks) if kv.index.digest(block) is not None]
        assert findable == [block for block in range(kv.pool.num_blocks) if kv.pool.cached[block]]
        assert len(findable) == len(kv.index)
        for request in self.scheduler.board.running:
            digests = request.holding.chain.digests
            salt = self.requests[request.id].cache_salt
            assert all(self.salts.setdefault(digest, salt) == salt for digest in digests), "a hit across salts"
            for table in request.holding.tables:
                for place, block in enumerate(table):
                    if block and kv.pool.cached[block]:
                        assert kv.index.digest(block) == digests[place], "a block is findable by another's past"


def random_world(random: Random) -> World:
    """Small pools, small budgets, all kinds of groups: where trouble is."""
    kinds: list[tuple[int | None, ...]] = [(None,), (None,), (6,), (None, 6), (6, None, 6, 6), (1, 9), (None, 5)]
    windows = random.choice(kinds)
    block_size, longest = random.choice([4, 4, 5, 8]), random.choice([24, 48])
    # In pools for one long request, more or less.
    vocab_size = random.choice([5, 40])  # few tokens: short outputs and chance hits; many: long outputs
    places = int(-(-longest // block_size) * random.choice([0.6, 1.0, 1.3, 1.3, 2.0, 4.0]))
    return World(
        windows=windows,
        block_size=block_size,
        num_blocks=1 + len(windows) * places,
        depth=random.choice([1, 2, 2, 3]),
        vocab_size=vocab_size,
        fail_rate=random.choice([0.0, 0.0, 0.05]),
        bad_rate=random.choice([0.0, 0.05]),
        limits=Limits(
            max_model_len=longest,
            max_num_seqs=random.choice([1, 4, 8, 8]),
            max_num_batched_tokens=random.choice([2, 8, 17, 64, 64]),
            max_waiting=random.choice([3, 20]),
            scheduling_policy=random.choice(["fcfs", "fair", "fair", "priority"]),
            prefix_caching=random.random() < 0.8,
        ),
    )
