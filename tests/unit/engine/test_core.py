from types import SimpleNamespace

import engine_fakes as fakes
import msgspec
import pytest
from engine_fakes import expected, make_core, request, run

from octavo.base.clock import FakeClock
from octavo.base.errors import EngineDead, EngineError
from octavo.base.wire import Control
from octavo.engine.control import execute
from octavo.engine.failures import Failure, classify
from octavo.engine.recovery import NO_MEMORY, STEP_FAILED
from octavo.testing.faults import Fault, FaultyExecutor, happen


def mixed_requests():
    return [request(f"r{i}", [(i * 7 + j) % 200 for j in range(3 + 9 * i)], max_tokens=3 + i % 5) for i in range(12)]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_depth_gives_the_tokens_of_each_request_alone(depth):
    core, _ = make_core(depth=1)
    core._pipeline.depth = depth
    wanted = mixed_requests()
    for one in wanted:
        core.add(one)
    results = run(core)
    assert {name: result[:2] for name, result in results.items()} == {one.id: expected(one) for one in wanted}
    assert core.stats.kv_usage == 0.0


@pytest.mark.parametrize("depth", [1, 2])
def test_few_blocks_force_preemption_and_change_nothing(depth):
    core, _ = make_core(depth=depth, num_blocks=40)
    wanted = [request(f"r{i}", list(range(i, i + 30)), max_tokens=60) for i in range(6)]
    for one in wanted:
        core.add(one)
    results = run(core)
    assert {name: result[:2] for name, result in results.items()} == {one.id: expected(one) for one in wanted}
    assert core.stats.preemptions > 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("at", range(7))
def test_abort_at_any_step_frees_and_leaves_the_others_alone(depth, at):
    core, _ = make_core(depth=depth)
    victim, other = request("victim", list(range(100)), max_tokens=20), request("other", list(range(50, 90)))
    core.add(victim)
    core.add(other)
    tokens, ends = {}, {}
    for _ in range(at):
        for output in (core.step() or fakes.NO_OUTPUTS).each():
            fakes.take(output, tokens, ends)
    core.abort(["victim", "nobody"])
    core.abort(["victim"])
    results = run(core)
    assert results.get("victim", (0, "abort"))[1] == "abort"
    assert tokens.get("other", []) + results["other"][0] == expected(other)[0]
    assert core.stats.kv_usage == 0.0
    assert core.stats.running == core.stats.waiting == 0


def many(count=9, max_tokens=12):
    return [
        request(f"r{i}", [(i * 5 + j) % 150 for j in range(3 + 4 * i)], max_tokens=max_tokens) for i in range(count)
    ]


def finish_all(core, wanted):
    for one in wanted:
        core.add(one)
    results = run(core)
    assert core.stats.kv_usage == 0.0
    assert core.stats.running == core.stats.waiting == 0
    return {name: result[:2] for name, result in results.items()}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("stage", ["forward", "sample", "result"])
@pytest.mark.parametrize("at", [1, 2, 5, 11, 20])
def test_a_step_that_fails_once_costs_nobody_a_token(depth, stage, at):
    core, _ = make_core(depth=min(depth, 2), num_blocks=80)
    core._pipeline.depth = depth
    core._pipeline._executor = FaultyExecutor(core.executor, [Fault(stage=stage, at=at)])
    wanted = many()
    assert finish_all(core, wanted) == {one.id: expected(one) for one in wanted}
    assert core.failures == 1


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("stage", ["forward", "result"])
@pytest.mark.parametrize("guilty", [0, 3, 8])
@pytest.mark.parametrize("after", [0, 5])
def test_the_request_at_fault_is_found_and_ends_alone(depth, stage, guilty, after):
    core, _ = make_core(depth=depth)
    faulty = FaultyExecutor(core.executor, [Fault(stage=stage, request=f"r{guilty}", at=after, times=1000)])
    core._pipeline._executor = faulty
    wanted = many()
    for one in wanted:
        core.add(one)
    results = run(core)
    for one in wanted:
        tokens, finish, last = results[one.id]
        if one is wanted[guilty]:
            assert (finish, last.error, last.error_code) == ("error", STEP_FAILED, 500)
            assert tokens == expected(one)[0][: len(tokens)]
        else:
            assert (tokens, finish) == expected(one)
    assert core.stats.kv_usage == 0.0
    assert core.failures <= 9


@pytest.mark.parametrize("count", [2, 3, 9])
def test_two_failures_in_a_row_end_nobody(count):
    core, _ = make_core()
    core._pipeline._executor = FaultyExecutor(core.executor, [Fault(stage="result", at=3, times=2)])
    wanted = many(count)
    assert finish_all(core, wanted) == {one.id: expected(one) for one in wanted}
    assert core.failures == 2


@pytest.mark.parametrize("depth", [1, 2])
def test_two_requests_at_fault_are_both_found(depth):
    core, _ = make_core(depth=depth)
    faults = [Fault(stage="result", request=f"r{i}", at=0, times=1000) for i in (2, 5)]
    core._pipeline._executor = FaultyExecutor(core.executor, faults)
    wanted = many()
    results = finish_all(core, wanted)
    assert {name for name, (_, finish) in results.items() if finish == "error"} == {"r2", "r5"}
    assert all(results[one.id] == expected(one) for one in wanted if one.id not in ("r2", "r5"))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("room", [40, 20])
def test_steps_get_smaller_when_memory_does_not_suffice(depth, room):
    """The device has room for so many tokens a step, where the budget says 64."""
    core, _ = make_core(depth=depth)
    faulty = FaultyExecutor(core.executor, [Fault(stage="forward", kind="memory", larger_than=room, times=1000)])
    core._pipeline._executor = faulty
    wanted = many(max_tokens=20)
    assert finish_all(core, wanted) == {one.id: expected(one) for one in wanted}
    assert 0 < core.failures <= 6


def test_smaller_steps_are_for_a_while_only():
    core, _ = make_core()
    core._pipeline._executor = FaultyExecutor(core.executor, [Fault(stage="forward", kind="memory", at=3, times=2)])
    wanted = many()
    assert finish_all(core, wanted) == {one.id: expected(one) for one in wanted}
    assert core._recovery._ceiling.rows is not None
    finish_all(core, [request(f"long{i}", [i, 2], max_tokens=50) for i in range(24)])
    assert core._recovery._ceiling.rows is None
    assert not core._recovery.alert


def test_a_request_that_never_fits_is_told_so():
    core, _ = make_core()
    fault = Fault(stage="forward", kind="memory", request="r4", at=0, times=1000)
    core._pipeline._executor = FaultyExecutor(core.executor, [fault])
    wanted = many(6)
    for one in wanted:
        core.add(one)
    results = run(core)
    assert results["r4"][2].error == NO_MEMORY
    assert all(results[one.id][:2] == expected(one) for one in wanted if one.id != "r4")


def test_a_dead_device_ends_the_engine_at_once():
    core, _ = make_core()
    core._pipeline._executor = FaultyExecutor(core.executor, [Fault(stage="result", kind="device", at=2)])
    for one in many():
        core.add(one)
    with pytest.raises(EngineDead, match="the device failed"):
        run(core)


def test_what_makes_steps_cheaper_may_fail():
    core, executor = make_core()
    calls = []
    executor.prepare = lambda: calls.append(1) or happen("memory")
    assert not core.prepare()
    assert not core.prepare()
    assert calls == [1]
    wanted = many()
    assert finish_all(core, wanted) == {one.id: expected(one) for one in wanted}
    core, executor = make_core()
    executor.prepare = lambda: happen("device")
    with pytest.raises(EngineDead, match="the device failed"):
        core.prepare()


def test_the_seat_gets_quiet_moments_that_the_executor_leaves():
    core, executor = make_core()
    calls = []
    executor.prepare = iter([True, True, False, False]).__next__
    core._seat = SimpleNamespace(holds=False, prepare=lambda: calls.append(1))
    assert core.prepare()
    assert core.prepare()
    assert not calls
    assert not core.prepare()
    assert not core.prepare()
    assert len(calls) == 2


def test_steps_that_fail_whoever_is_in_them_end_the_engine():
    core, executor = make_core()
    executor.fail_steps = set(range(0, 1000, 3))
    finish_all(core, many())
    executor.fail_steps = set(range(100_000))
    core.add(request("alone", [1]))
    assert run(core)["alone"][1] == "error"
    for one in many():
        core.add(one)
    with pytest.raises(EngineDead, match="whoever is in them"):
        run(core)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("shape"), Failure.STEP),
        (MemoryError(), Failure.MEMORY),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), Failure.MEMORY),
        (type("AcceleratorError", (RuntimeError,), {})("CUDA error: out of memory"), Failure.MEMORY),
        (type("AcceleratorError", (RuntimeError,), {})("CUDA error: device-side assert triggered"), Failure.DEVICE),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Failure.DEVICE),
        (ValueError("CUDA error"), Failure.STEP),
    ],
)
def test_what_an_exception_means(error, kind):
    assert classify(error) is kind
    wrapped = EngineError("step 3 failed")
    wrapped.__cause__ = error
    assert classify(wrapped) is kind


def test_a_full_queue_answers_429_and_keeps_what_it_has():
    core, _ = make_core(max_waiting=3)
    wanted = [request(f"r{i}", [i]) for i in range(5)]
    for one in wanted:
        core.add(one)
    results = run(core)
    refused = {name for name, result in results.items() if result[2].error_code == 429 and result[1] == "error"}
    assert refused == {"r3", "r4"}
    assert results["r3"][2].retry_after_s >= 1.0
    assert results["r0"][:2] == expected(wanted[0])


@pytest.mark.parametrize(
    "bad",
    [
        request("", [1]),
        request("x" * 10_000, [1]),
        request("a", []),
        request("a", [-1]),
        request("a", [200]),
        request("a", [1 << 40]),
        request("a", list(range(200)) * 3),
        request("a", [1], max_tokens=0),
        request("a", [1], temperature=float("nan")),
        request("a", [1], temperature=-1.0),
        request("a", [1], top_p=float("inf")),
        request("a", [1], repetition_penalty=0.0),
        request("a", [1], stop_token_ids=(200,)),
        request("a", [1], eos_token_ids=(-1,)),
        request("a", [1], bad_words=((1, 999),)),
        request("a", [1], allowed_token_ids=(1 << 35,)),
        request("a", [1], logit_bias=((3, float("inf")),)),
        request("a", [1], logprobs=1000),
        request("a", [1], logprobs=2, logprob_token_ids=(3, 200)),
    ],
)
def test_what_would_index_outside_is_refused_beside_a_good_request(bad):
    core, _ = make_core()
    good = request("good", [1, 2, 3])
    core.add(good)
    core.add(bad)
    results = run(core)
    assert results[bad.id][1] == "error"
    assert results[bad.id][2].error_code == 400
    assert results["good"][:2] == expected(good)


def test_an_idle_core_has_nothing_to_say():
    core, _ = make_core()
    assert not core.has_work
    assert core.step() is None


def test_shutdown_waits_for_steps_in_flight():
    core, executor = make_core(depth=2, latency_s=0.01)
    core.add(request("a", [1, 2, 3], max_tokens=50))
    core.step()
    core.shutdown()
    assert executor.closed
    assert len(core._pipeline) == 0


def test_commands():
    core, _ = make_core()
    core.add(request("a", list(range(20))))
    run(core)
    assert execute(core, Control(1, "ping")).value == core.stats.steps
    told = execute(core, Control(2, "stats")).value
    assert told["generation_tokens"] == 8
    assert told["failed_steps"] == 0
    assert execute(core, Control(3, "reset_prefix_cache")).value is True
    assert "did you mean reset_prefix_cache" in execute(core, Control(4, "reset_prefix_cash")).error
    assert execute(core, Control(5, "ping", {"x": 1})).error


def test_a_command_that_breaks_is_told_and_stops_nothing(monkeypatch):
    core, _ = make_core()
    monkeypatch.setattr(type(core), "stats", property(lambda _: 1 / 0))
    reply = execute(core, Control(9, "stats"))
    assert reply.id == 9
    assert reply.error == "the command failed: ZeroDivisionError"


def test_a_request_that_waits_too_long_is_refused_and_the_line_moves_on():
    clock = FakeClock()
    core, _ = make_core(depth=1, max_num_seqs=1, num_blocks=60)
    core._clock = core.scheduler.board._clock = clock
    patient = request("patient", [4, 5])
    hasty = msgspec.structs.replace(request("hasty", [6, 7]), max_wait_s=60.0)
    first = request("first", [1, 2, 3], max_tokens=90)
    tokens, ends = {}, {}

    def step(seconds):
        clock.advance(seconds)
        for output in core.step().each():
            fakes.take(output, tokens, ends)

    core.add(first)
    step(0)
    core.add(hasty)
    core.add(patient)
    for _ in range(6):
        step(10)
    assert not ends
    step(1)
    told = ends["hasty"]
    assert (told.finish, told.error_code, told.error_name) == ("error", 429, "overloaded")
    assert "60 s" in told.error
    results = run(core)
    assert results["patient"][:2] == expected(patient)
    assert results["patient"][2].queued_s == 61.0
    assert results["first"][2].queued_s == 0.0


def test_a_preempted_request_does_not_run_out_of_patience():
    clock = FakeClock()
    core, _ = make_core(depth=1, num_blocks=40)
    core._clock = core.scheduler.board._clock = clock
    wanted = [
        msgspec.structs.replace(request(f"r{i}", list(range(i, i + 10)), max_tokens=60), max_wait_s=1e6 if i else 5.0)
        for i in range(4)
    ]
    for one in reversed(wanted):  # the hasty one is last in line, so the first to be preempted
        core.add(one)
    tokens, ends = {}, {}
    while core.has_work:
        clock.advance(1)
        for output in core.step().each():
            fakes.take(output, tokens, ends)
    assert core.stats.preemptions > 0
    assert {name: (tokens[name], ends[name].finish) for name in ends} == {one.id: expected(one) for one in wanted}


def test_a_refusal_names_its_field():
    core, _ = make_core()
    core.add(request("a", [10**6]))
    core.add(request("b", list(range(100)), max_tokens=10**6))
    outputs = {output.id: output for output in core.step().each()}
    assert (outputs["a"].error_param, outputs["a"].error_code) == ("prompt", 400)
    assert outputs["a"].finish == "error"
