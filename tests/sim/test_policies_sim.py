"""What the policies promise, over thousands of steps: shares, no starvation, nobody idle while there is work."""

from collections import Counter
from random import Random

import pytest

from octavo.base.wire import EngineRequest, Sampling
from octavo.sched.fair import OUTPUT_WEIGHT, FairQueue
from octavo.sched.gates import Gate
from octavo.sched.limits import Limits
from octavo.sched.priority import MAX_PREEMPTIONS
from octavo.sched.request import Request
from octavo.testing.sim import Simulation, World

VOCAB = 50
ROWS = 4


def simulation(policy: str, *, num_blocks: int = 401, rows: int = ROWS, seed: int = 0) -> Simulation:
    limits = Limits(
        max_model_len=64,
        max_num_seqs=rows,
        max_num_batched_tokens=64,
        max_waiting=5000,
        scheduling_policy=policy,
        prefix_caching=False,
    )
    return Simulation(World(depth=2, num_blocks=num_blocks, vocab_size=VOCAB, limits=limits), seed)


def ask(id: str, tenant: str, prompt: int = 10, max_tokens: int = 10, priority: int = 0) -> EngineRequest:
    tokens = [(sum(map(ord, id)) * 7 + i * i) % VOCAB for i in range(prompt)]
    sampling = Sampling(seed=0, max_tokens=max_tokens, temperature=0.0)
    return EngineRequest(id=id, tokens=tokens, sampling=sampling, tenant=tenant, priority=priority)


def advance(sim: Simulation, steps: int) -> None:
    """Without the checks of `step`, which look at each of a thousand requests."""
    for _ in range(steps):
        while sim.launch():
            pass
        sim.land()


def steps_until(sim: Simulation, ids: list[str], most: int = 20_000) -> int:
    for step in range(most):
        if all(sim.seen[id].finish for id in ids):
            return step
        advance(sim, 1)
    raise AssertionError("they never ended")


def delay_of_a_light_tenant(policy: str) -> int:
    sim = simulation(policy)
    for index in range(1000):
        sim.add(ask(f"h{index}", "heavy"))
    advance(sim, 50)
    light = [f"l{index}" for index in range(8)]
    for id in light:
        sim.add(ask(id, "light"))
    return steps_until(sim, light)


def test_a_thousand_requests_of_one_do_not_hold_up_another() -> None:
    alone = simulation("fair")
    ids = [f"l{index}" for index in range(8)]
    for id in ids:
        alone.add(ask(id, "light"))
    needs = steps_until(alone, ids)
    # Half of the engine is its share: twice as long, and what runs when it comes may end first.
    assert delay_of_a_light_tenant("fair") <= 2 * needs + 15
    assert delay_of_a_light_tenant("fcfs") > 20 * needs


@pytest.mark.parametrize("tenants", [2, 3, 5])
def test_tenants_that_always_ask_get_equal_shares_whatever_they_ask(tenants: int) -> None:
    sim = simulation("fair", seed=tenants)
    random = Random(tenants)
    sizes = [(8, 4), (30, 4), (8, 24), (20, 12), (3, 30)][:tenants]
    for index in range(1500):
        who = random.choices(range(tenants), weights=[8, 1, 1, 1, 1][:tenants])[0] if index > 800 else index % tenants
        prompt, out = sizes[who]
        sim.add(ask(f"{who}-{index}", f"t{who}", prompt, out))
    advance(sim, 400)
    queue = sim.scheduler.board.waiting
    assert isinstance(queue, FairQueue)
    served = [queue.served(f"t{who}") for who in range(tenants)]
    largest = max(prompt + OUTPUT_WEIGHT * out for prompt, out in sizes)
    assert max(served) - min(served) <= 2 * ROWS * largest, "the bound of the paper: twice the batch"
    made = Counter[str]()
    for id, seen in sim.seen.items():
        made[id.partition("-")[0]] += OUTPUT_WEIGHT * len(seen.tokens) + (
            len(sim.requests[id].tokens) if seen.tokens else 0
        )
    assert max(made.values()) - min(made.values()) <= 4 * ROWS * largest


def test_nobody_waits_while_there_is_room() -> None:
    sim = simulation("fair")
    for index in range(60):
        sim.add(ask(f"h{index}", "heavy"))
    while sim.scheduler.has_work:
        while sim.launch():
            board = sim.scheduler.board
            assert len(board.running) == ROWS or not len(board.waiting)
        sim.land()
    sim.drain()
    assert sim.scheduler.stats().generation_tokens == 600


def test_with_one_tenant_it_is_fcfs() -> None:
    def starts(policy: str) -> list[list[int]]:
        sim = simulation(policy, num_blocks=31)
        random = Random(3)
        for index in range(40):
            sim.add(ask(f"r{index}", "", random.randrange(1, 30), random.randrange(1, 30)))
        plans = []
        while sim.scheduler.has_work:
            while sim.launch():
                plans.append(sim.in_flight[-1][0].num_tokens)
            sim.land()
        assert sim.scheduler.stats().preemptions > 0
        return plans

    assert starts("fair") == starts("fcfs")


def test_idleness_saves_nothing_up() -> None:
    sim = simulation("fair", rows=1)
    for index in range(60):
        sim.add(ask(f"h{index}", "heavy"))
    sim.add(ask("l", "light"))
    advance(sim, 300)
    queue = sim.scheduler.board.waiting
    assert isinstance(queue, FairQueue)
    assert queue.served("light") < queue.served("heavy") / 5
    for index in range(60):
        sim.add(ask(f"l{index}", "light"))
    before = Counter(id[0] for id, seen in sim.seen.items() if seen.finish)
    advance(sim, 200)
    after = Counter(id[0] for id, seen in sim.seen.items() if seen.finish)
    assert abs((after["h"] - before["h"]) - (after["l"] - before["l"])) <= 2, "from its return on they take turns"


def test_what_a_tenant_got_while_alone_is_no_debt_to_those_who_come() -> None:
    sim = simulation("fair", rows=ROWS)
    for index in range(ROWS):
        sim.add(ask(f"long{index}", "first", 10, 50))
    advance(sim, 40)
    for index in range(100):
        sim.add(ask(f"n{index}", "new"))
        sim.add(ask(f"f{index}", "first"))
    advance(sim, 150)
    ended = Counter(id[0] for id, seen in sim.seen.items() if seen.finish and not id.startswith("long"))
    assert abs(ended["n"] - ended["f"]) <= 2 * ROWS


def test_blocks_run_short_at_the_cost_of_those_who_have_most() -> None:
    """The light tenant's request came last, and is not the one that loses its place."""
    sim = simulation("fair", num_blocks=41, rows=8)
    for index in range(200):
        sim.add(ask(f"h{index}", "heavy", 12, 40))
    advance(sim, 60)
    lost = 0
    for index in range(10):
        id = f"l{index}"
        sim.add(ask(id, "light", 12, 40))
        while not sim.seen[id].finish:
            advance(sim, 1)
            request = sim.scheduler.board.requests.get(id)
            lost += request is not None and request.preemptions > 0
    assert sim.scheduler.stats().preemptions > 20
    assert lost == 0


@pytest.mark.parametrize("seed", range(6))
def test_nobody_starves_however_short_blocks_are(seed: int) -> None:
    sim = simulation("fair", num_blocks=18, rows=8, seed=seed)
    random = Random(seed)
    for index in range(120):
        sim.add(ask(f"r{index}", random.choice("abcd"), random.randrange(1, 30), random.randrange(1, 33)))
    sim.drain(6000)
    assert sim.finishes["length"] == 120


def test_an_urgent_arrival_takes_the_place_of_another() -> None:
    sim = simulation("priority", rows=2)
    for id in ("a", "b", "c"):
        sim.add(ask(id, "", 10, 40, priority=5))
    advance(sim, 5)
    sim.add(ask("urgent", "", 10, 10, priority=0))
    sim.add(ask("equal", "", 10, 10, priority=5))
    sim.step()
    running = [request.id for request in sim.scheduler.board.running]
    assert running == ["urgent", "a"], "the last in order has gone, and no other"
    sim.drain()
    assert sim.finishes["length"] == 5


def test_nobody_gives_way_in_vain() -> None:
    """The newcomer would not fit even so: who runs keeps its place."""
    sim = simulation("priority", num_blocks=17, rows=4)  # 64 tokens
    sim.add(ask("first", "", 30, 20, priority=0))
    sim.add(ask("low", "", 8, 20, priority=9))
    advance(sim, 2)
    sim.add(ask("big", "", 50, 5, priority=1))
    sim.step()
    assert "low" in [request.id for request in sim.scheduler.board.running]
    sim.drain()


def test_nobody_gives_way_to_one_whom_a_gate_holds_back() -> None:
    class Closed(Gate):
        def allow(self, request: Request, num_tokens: int) -> int:
            return 0 if request.row < 0 else num_tokens

    sim = simulation("priority", rows=2)
    for id in ("a", "b"):
        sim.add(ask(id, "", 10, 40, priority=5))
    advance(sim, 3)
    sim.add(ask("urgent", "", 10, 10, priority=0))
    sim.scheduler._gates.append(Closed())
    advance(sim, 5)
    assert sim.scheduler.stats().preemptions == 0
    sim.scheduler._gates.pop()
    sim.drain()
    assert sim.scheduler.stats().preemptions == 1


@pytest.mark.parametrize("seed", range(4))
def test_nor_when_blocks_are_short(seed: int) -> None:
    """One of low urgency runs, is preempted for its place and for its blocks, and ends all the same."""
    sim = simulation("priority", rows=6, num_blocks=26, seed=seed)
    sim.add(ask("low", "", 10, 50, priority=9))
    random, lost = Random(seed), 0
    for index in range(400):
        if index % 9 == 0:
            prompt, out = random.randrange(1, 20), random.randrange(10, 40)
            sim.add(ask(f"u{index}", "", prompt, out, priority=random.randrange(3)))
        advance(sim, 1)
        low = sim.scheduler.board.requests.get("low")
        lost = max(lost, low.preemptions if low else 0)
    assert 0 < lost <= MAX_PREEMPTIONS + 1, "once more at most, by another that is spared"
    assert sim.seen["low"].finish == "length"
    sim.drain()


@pytest.mark.parametrize("seed", range(4))
def test_urgent_ones_cannot_take_a_place_for_ever(seed: int) -> None:
    sim = simulation("priority", rows=2, num_blocks=60, seed=seed)
    sim.add(ask("low", "", 10, 40, priority=9))
    sim.add(ask("low2", "", 10, 40, priority=9))
    random, lost = Random(seed), 0
    for index in range(300):
        if index % 12 == 0:
            sim.add(ask(f"u{index}", "", random.randrange(1, 20), 6, priority=random.randrange(3)))
        advance(sim, 1)
        for request in sim.scheduler.board.requests.values():
            lost = max(lost, request.preemptions)
            assert request.preemptions <= MAX_PREEMPTIONS
    assert lost == MAX_PREEMPTIONS
    assert sim.seen["low"].finish == "length", "it ended while urgent ones kept coming"
    sim.drain()
