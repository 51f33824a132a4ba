"""Blocks for many that decode at once: what each gets is what it would have got in its turn."""

import random

import pytest

from octavo.base.specs import KVGroup, KVLayout, KVSpec
from octavo.base.wire import EngineRequest, Sampling
from octavo.kv.manager import KVManager
from octavo.sched import growth
from octavo.sched.board import Board
from octavo.sched.limits import Limits
from octavo.sched.scheduler import Scheduler
from octavo.testing.fake_executor import FakeExecutor

BLOCK = 4


def run(windows, seed, depth):
    """Each step without its blocks, each result, and how many blocks can be found in the end."""
    groups = tuple(KVGroup(KVSpec(1, 8, window), (i,)) for i, window in enumerate(windows))
    layout = KVLayout(groups=groups, block_size=BLOCK, num_blocks=400, dtype_bytes=2)
    limits = Limits(max_model_len=60, max_num_seqs=12, max_num_batched_tokens=40, scheduling_policy="fcfs")
    scheduler, executor = Scheduler(layout, limits), FakeExecutor(max_rows=12, max_tokens=40, vocab_size=7)
    executor.start(layout)
    rng = random.Random(seed)
    steps, results, flying = [], [], []
    for number in range(120):
        if number < 60 and rng.random() < 0.5:
            tokens = [rng.randrange(7) for _ in range(rng.randint(1, 30))]
            sampling = Sampling(
                seed=0, max_tokens=rng.randint(1, 25), temperature=0.0, prompt_logprobs=rng.choice([-1, -1, 0])
            )
            scheduler.add(EngineRequest(f"{number}", tokens, sampling))
        if number % 17 == 16 and scheduler.board.running:
            scheduler.abort([scheduler.board.running[0].id])
        if number % 13 == 12 and not flying and scheduler.board.running:
            scheduler.amend([scheduler.board.running[-1].id])
        while len(flying) < depth and (plan := scheduler.plan()) is not None:
            steps.append([list(each) for each in (plan.rows, plan.num_tokens, plan.starts, plan.sample)])
            executor.forward(plan)
            flying.append((plan, executor.sample({})))
        if flying:
            plan, pending = flying.pop(0)
            outputs = scheduler.update(plan, pending.result())
            results.append([(each.id, each.tokens, each.finish) for each in outputs.each()])
    assert not scheduler.has_work
    assert not executor.violations
    assert scheduler.board.kv.usage == 0
    return steps, results, len(scheduler.board.kv.index)


@pytest.mark.parametrize("windows", [(None,), (None, 6), (1,)])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_growth_together_is_growth_one_by_one(monkeypatch, windows, depth, seed):
    served = []
    grow = KVManager.grow
    monkeypatch.setattr(KVManager, "grow", lambda *args: served.append(len(args[1])) or grow(*args))
    together = run(windows, seed, depth)
    assert max(served) > 1
    monkeypatch.setattr(Board, "plenty", False)
    served.clear()
    assert run(windows, seed, depth) == together
    assert not served


def test_whoever_needs_a_block_soon_gets_it_with_those_who_need_it_now():
    """Rows at every place of their blocks: without that there would be somebody in every step."""
    size, rows, steps = 16, 32, 64
    layout = KVLayout(groups=(KVGroup(KVSpec(1, 8), (0,)),), block_size=size, num_blocks=1000, dtype_bytes=2)
    limits = Limits(max_model_len=400, max_num_seqs=rows, max_num_batched_tokens=4096)
    scheduler, executor = Scheduler(layout, limits), FakeExecutor(max_rows=rows, max_tokens=4096, vocab_size=7)
    executor.start(layout)
    for row in range(rows):
        sampling = Sampling(seed=0, max_tokens=steps, temperature=0.0)
        scheduler.add(EngineRequest(f"{row}", [row % 7] * (20 + row % size), sampling))
    grown, idle = [], []
    while (plan := scheduler.plan()) is not None:
        executor.forward(plan)
        grown.append(sum(len(new.rows) for new in plan.new_blocks))
        idle.append(max(r.holding.capacity - r.computed for r in scheduler.board.running))
        scheduler.update(plan, executor.sample({}).result())
    assert not executor.violations
    assert sum(count > 0 for count in grown) <= len(grown) // 4 + 1
    assert max(idle) < size + size // growth.EARLY
