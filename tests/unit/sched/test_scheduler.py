"""The scheduler in scenes, each small enough to follow. The simulation in tests/sim covers the rest."""

from typing import Any

import msgspec
import pytest

from octavo.base.errors import Overloaded, UserError
from octavo.base.plan import StepResult
from octavo.base.wire import EngineRequest, Progress, Sampling
from octavo.sched.limits import Limits
from octavo.sched.update import LATE
from octavo.testing.fake_executor import expected_tokens
from octavo.testing.sim import Simulation, World

VOCAB = 50


def limits(**changes: Any) -> Limits:
    values = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return Limits(**(values | changes))


def world(depth: int = 2, num_blocks: int = 101, **changes: Any) -> Simulation:
    return Simulation(World(depth=depth, num_blocks=num_blocks, vocab_size=VOCAB, limits=limits(**changes)))


def ask(id: str, prompt: int = 10, first: int = 1, **sampling: Any) -> EngineRequest:
    priority = sampling.pop("priority", 0)
    values = {"seed": 0, "temperature": 0.0, "max_tokens": 8}
    tokens = [(first + i) % VOCAB for i in range(prompt)]
    return EngineRequest(id=id, tokens=tokens, sampling=Sampling(**(values | sampling)), priority=priority)


def running(sim: Simulation) -> list[str]:
    return [request.id for request in sim.scheduler.board.running]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_step_is_planned_past_max_tokens(depth: int) -> None:
    sim = world(depth)
    sim.add(ask("a", max_tokens=5))
    sim.drain()
    assert sim.scheduler.stats().steps == 5
    assert sim.fake.tokens_computed == 10 + 4, "the last token is never computed"


@pytest.mark.parametrize("depth", [1, 2])
def test_context_ends_a_request(depth: int) -> None:
    sim = world(depth, max_model_len=16)
    sim.add(ask("a", max_tokens=50))
    sim.drain()
    assert len(sim.seen["a"].tokens) == 6
    assert sim.seen["a"].finish == "length"


def test_long_prompts_go_in_chunks_beside_those_who_decode() -> None:
    sim = world(depth=1, max_num_batched_tokens=8)
    sim.add(ask("a", prompt=4, max_tokens=20))
    sim.step()
    sim.add(ask("b", prompt=30, first=20))
    before = len(sim.seen["a"].tokens)
    for _ in range(5):
        assert not sim.seen["b"].tokens
        sim.step()
    assert len(sim.seen["a"].tokens) == before + 5, "one token each step, however long the other's prompt"
    assert len(sim.seen["b"].tokens) == 1, "30 tokens in chunks of 7"
    sim.drain()


def test_equal_prompts_share_blocks_within_one_step() -> None:
    sim = world()
    for i in range(4):
        sim.add(ask(f"n{i}", prompt=17, seed=i, temperature=1.0))
    sim.launch()
    assert sim.scheduler.board.kv.pool.num_used == 4 + 4 * 1
    sim.drain()
    stats = sim.scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits, stats.prompt_tokens) == (68, 48, 20)


def test_a_hit_is_reported_and_changes_no_token() -> None:
    sim = world(depth=1)
    sim.add(ask("cold", prompt=21))
    sim.drain()
    sim.add(ask("warm", prompt=21))
    plan = sim.scheduler.plan()
    assert plan is not None
    assert (list(plan.starts), list(plan.num_tokens)) == ([20], [1])
    sim.fake.forward(plan)
    outputs = sim.scheduler.update(plan, sim.fake.sample({}).result()).each()
    assert outputs[0].cached_tokens == 20
    sim._take(outputs)
    sim.drain()
    assert sim.seen["warm"] == sim.seen["cold"]


def test_prompt_logprobs_are_computed_in_full_despite_the_cache() -> None:
    sim = world()
    sim.add(ask("cold", prompt=21))
    sim.drain()
    sim.add(ask("scored", prompt=21, prompt_logprobs=2))
    sim.drain()
    assert len(sim.seen["scored"].prompt_logprobs) == 21
    assert sim.scheduler.stats().prefix_hits == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_the_last_arrival_is_preempted_and_resumes_with_equal_tokens(depth: int) -> None:
    sim = world(depth, num_blocks=11)  # 40 tokens
    sim.add(ask("old", prompt=12, first=1, max_tokens=20))
    sim.add(ask("young", prompt=12, first=30, max_tokens=20))
    preempted_in_flight = False
    while sim.scheduler.has_work:
        while sim.launch():
            for request in sim.scheduler.board.requests.values():
                preempted_in_flight |= request.row < 0 and request.in_flight
        sim.land()
    sim.drain()
    assert sim.scheduler.stats().preemptions >= 1
    assert sim.finishes == {"length": 2}
    assert preempted_in_flight == (depth == 2)


def test_priority_goes_first_and_is_preempted_last() -> None:
    sim = world(depth=1, num_blocks=11, scheduling_policy="priority", max_num_seqs=2)
    sim.add(ask("low", prompt=12, first=1, max_tokens=20, priority=5))
    sim.step()
    sim.add(ask("mid", prompt=12, first=30, max_tokens=20, priority=3))
    sim.add(ask("high", prompt=12, first=17, max_tokens=20, priority=-1))
    sim.step()
    assert running(sim) == ["high", "low"]
    while "low" in running(sim):
        sim.step()
    assert sim.seen["low"].finish is None, "preempted for the sake of one that arrived later"
    sim.drain()


def test_nobody_passes_the_first_in_line() -> None:
    sim = world(depth=1, num_blocks=13)
    sim.add(ask("first", prompt=30, first=1, max_tokens=4))
    sim.step()
    sim.add(ask("big", prompt=40, first=9, max_tokens=2))
    sim.add(ask("small", prompt=2, first=20, max_tokens=2))
    sim.step()
    assert running(sim) == ["first"]
    sim.drain()
    assert sim.finishes == {"length": 3}


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (ask("a", prompt=0), "prompt"),
        (ask("a", prompt=64), "prompt"),
        (ask("a", prompt=50, max_tokens=1), "prompt"),
        (ask("a", prompt=30, max_tokens=30), "max_tokens"),
        (ask("a", priority=1), "priority"),
        (
            EngineRequest(id="a", tokens=[1], sampling=Sampling(seed=0, max_tokens=1), cache_salt="x" * 5000),
            "cache_salt",
        ),
    ],
)
def test_what_can_never_run_is_refused_and_blocks_nobody(request_: EngineRequest, param: str) -> None:
    sim = world(num_blocks=11)  # 40 tokens
    sim.add(ask("before"))
    with pytest.raises(UserError) as caught:
        sim.scheduler.add(request_)
    assert (caught.value.status, caught.value.param) == (400, param)
    sim.add(ask("a"))
    sim.drain()
    assert sim.finishes == {"length": 2}


def test_what_just_fits_alone_runs() -> None:
    sim = world(num_blocks=11)
    assert sim.add(ask("a", prompt=30, max_tokens=11))
    assert sim.add(ask("b", prompt=40, max_tokens=1, first=3))
    sim.drain()
    assert sim.finishes == {"length": 2}


def test_a_full_line_is_overloaded_and_an_id_is_used_once() -> None:
    sim = world(max_waiting=2)
    sim.add(ask("a"))
    with pytest.raises(UserError, match="id"):
        sim.scheduler.add(ask("a"))
    sim.add(ask("b"))
    with pytest.raises(Overloaded):
        sim.scheduler.add(ask("c"))
    sim.drain()


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_abort_at_any_moment_frees_at_once(steps: int, in_flight: int) -> None:
    sim = world(max_num_batched_tokens=8)
    sim.add(ask("other", prompt=5))
    sim.add(ask("gone", prompt=20, first=30))
    for _ in range(steps):
        sim.step()
    for _ in range(in_flight):
        sim.launch()
    held = sim.scheduler.board.kv.pool.num_used
    sim.abort("gone", "gone", "never heard of")
    sim.abort("gone")
    sim.check()
    assert "gone" not in sim.scheduler.board.requests
    assert sim.scheduler.board.kv.pool.num_used < held or held <= 2
    sim.drain()
    assert sim.finishes["abort"] == 1
    assert sim.seen["other"].finish == "length"


def test_bad_logits_end_one_request_only() -> None:
    sim = world()
    sim.fake.bad_logits.add("bad")
    for id, first in (("good", 1), ("bad", 20), ("fine", 40)):
        sim.add(ask(id, first=first))
    sim.drain()
    assert sim.finishes == {"length": 2, "error": 1}
    assert (sim.seen["bad"].tokens, sim.seen["bad"].finish) == ([], "error")


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failed_step_ends_those_in_it_and_leaves_nothing_findable(depth: int) -> None:
    sim = world(depth, max_num_seqs=2)
    sim.world.give_up_rate = 1.0
    sim.fake.fail_steps = {3}
    for i, id in enumerate("abcd"):
        sim.add(ask(id, prompt=16, first=i, max_tokens=4))
    sim.drain()
    assert sim.finishes == {"error": 2, "length": 2}
    assert {id for id in "abcd" if sim.seen[id].finish == "error"} == {"a", "b"}
    # The same prompts again: had a poisoned block stayed findable, the fake executor would say so.
    for i, id in enumerate("efgh"):
        sim.add(ask(id, prompt=17, first=i))
    sim.drain()
    assert sim.finishes["length"] == 6


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("at", range(1, 12))
def test_a_step_that_fails_once_is_done_again(depth: int, at: int) -> None:
    sim = world(depth, max_num_seqs=3)
    sim.world.give_up_rate = 0.0
    sim.fake.fail_steps = {at}
    for i, id in enumerate("abcd"):
        sim.add(ask(id, prompt=9 + 4 * i, first=i, max_tokens=6))
    sim.drain()
    assert sim.finishes == {"length": 4}


@pytest.mark.parametrize("told", [0, 1, 4, 7])
def test_a_request_goes_on_where_another_engine_left_it(told: int) -> None:
    """The fake model is a function of all tokens before: what is missing or doubled changes everything after it."""
    sim = world(2, max_num_seqs=2)
    whole = ask("a", prompt=9, max_tokens=8)
    want, reason = expected_tokens(sim.fake.next_token, whole.tokens, whole.sampling)
    progress = Progress(want[:told], scored=0, cached_tokens=3, queued_s=1.5)
    outputs = []
    sim.scheduler.add(msgspec.structs.replace(whole, progress=progress))
    while sim.scheduler.has_work:
        plan = sim.scheduler.plan()
        sim.fake.forward(plan)
        outputs += sim.scheduler.update(plan, sim.fake.sample({}).result()).each()
    assert [token for output in outputs for token in output.tokens] == want[told:]
    assert (outputs[-1].finish, outputs[-1].cached_tokens, outputs[-1].queued_s) == (reason, 3, 1.5)


def test_a_request_cannot_come_back_with_more_than_it_may_have() -> None:
    scheduler = world(1).scheduler
    for told in (4, 5):
        whole = ask("a", prompt=9, max_tokens=4)
        with pytest.raises(UserError, match="all the tokens"):
            scheduler.add(msgspec.structs.replace(whole, progress=Progress([1] * told)))


def test_results_must_come_in_order_and_lost_ones_are_passed_over() -> None:
    scheduler = world().scheduler
    scheduler.add(ask("a"))
    first, second = scheduler.plan(), scheduler.plan()
    assert first is not None
    assert second is not None
    with pytest.raises(ValueError, match="before"):
        scheduler.update(second, StepResult(second.step, [1]))
    with pytest.raises(ValueError, match="sampled"):
        scheduler.update(first, StepResult(first.step, []))
    assert scheduler.reached(second) == {"a": 11}
    scheduler.retreat([first, second])
    outputs = scheduler.reject(["a"], "the device is gone")
    assert [(output.id, output.finish, output.error, output.error_code) for output in outputs] == [
        ("a", "error", "the device is gone", 500)
    ]
    assert scheduler.update(second, StepResult(second.step, [1])).each() == []
    assert not scheduler.has_work


def test_waste_is_under_four_per_cent_on_mixed_lengths() -> None:
    settings = limits(max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=2048)
    sim = Simulation(World(block_size=16, num_blocks=4001, vocab_size=VOCAB, limits=settings))
    for i in range(64):
        sim.add(ask(f"r{i}", prompt=50 + 13 * i, first=i, max_tokens=30))
    waste = []
    for _ in range(60):
        sim.launch()
        sim.land()
        waste.append(sim.scheduler.stats().kv_waste)
    assert sum(waste) / len(waste) < 0.04
    sim.drain()


def test_plain_tokens_are_told_in_columns_and_all_else_one_by_one() -> None:
    """The first token comes with what belongs to a start, the last with a reason; a filled block changes nothing."""
    sim = world(depth=1)
    for id in ("a", "b"):
        sim.add(EngineRequest(id=id, tokens=[1, 2, 3], sampling=Sampling(seed=0, max_tokens=9)))
    shapes = []
    while sim.scheduler.has_work:
        plan = sim.scheduler.plan()
        assert plan is not None
        sim.fake.forward(plan)
        told = sim.scheduler.update(plan, sim.fake.sample({}).result())
        shapes.append(([output.finish for output in told.outputs], sorted(told.ids), len(told.tokens)))
        sim._take(told.each())
    assert shapes == [([None, None], [], 0), *[([], ["a", "b"], 2)] * 7, (["length", "length"], [], 0)]
    assert sim.seen["a"].tokens == sim.seen["b"].tokens


def test_running_requests_may_be_put_in_another_order() -> None:
    sim = world()
    for id in ("a", "b", "c"):
        sim.add(ask(id))
    sim.step()
    sim.scheduler.board.running.reverse()
    rows = [request.row for request in sim.scheduler.board.running]
    plan = sim.scheduler.plan()
    assert plan is not None
    assert list(plan.rows) == rows


def test_tokens_of_a_request_are_whole_whenever_they_are_read() -> None:
    """Those that came in columns are written down late; a look at one of them, its end or a preemption does it."""
    sim = world()
    for id in ("a", "b", "c"):
        sim.add(ask(id, max_tokens=30))
    board = sim.scheduler.board
    for step in range(60):
        while sim.launch():
            pass
        sim.land()
        if step in (9, 10, 21):
            for id, request in board.requests.items():
                assert request.tokens == sim.requests[id].tokens + sim.seen[id].tokens
        if step == 15:
            board.preempt(board.requests["b"])
            assert board.requests["b"].line == sim.requests["b"].tokens + sim.seen["b"].tokens
    assert {seen.finish for seen in sim.seen.values()} == {"length"}


def test_filled_blocks_are_offered_together_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows at every place of their blocks: in most steps somebody fills one, in few of them blocks are offered."""
    size, rows, steps, served = 16, 32, 64, []
    settings = limits(max_model_len=400, max_num_seqs=rows, max_num_batched_tokens=4096)
    sim = Simulation(World(block_size=size, num_blocks=1000, vocab_size=VOCAB, limits=settings))
    kv = sim.scheduler.board.kv
    offer = kv.commit_next
    monkeypatch.setattr(kv, "commit_next", lambda *args: served.append(len(args[0])) or offer(*args))
    for row in range(rows):
        sim.add(ask(f"{row}", prompt=20 + row % size, first=row, max_tokens=steps))
    late = 0
    while sim.scheduler.has_work:
        sim.step()
        for request in sim.scheduler.board.running:
            if request.spoken:
                late = max(late, len(request.tokens) - 1 - request.holding.committed * size)
    sim.drain()
    assert sum(served) >= rows * (steps // size - 1)
    assert len(served) <= steps // LATE + 2
    assert late < size + size // LATE
