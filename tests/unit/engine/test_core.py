import engine_fakes as fakes
import msgspec
import pytest
from engine_fakes import expected, make_core, request, run

from octavo.base.clock import FakeClock
from octavo.base.errors import EngineDead
from octavo.base.wire import Control
from octavo.engine.control import COMMANDS, execute
from octavo.engine.core import FAILURE_LIMIT


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


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failed_step_ends_its_requests_and_no_others(depth):
    core, executor = make_core(depth=depth, max_num_seqs=2, max_num_batched_tokens=8)
    wanted = [request(f"r{i}", [i, i + 1, i + 2]) for i in range(6)]
    for one in wanted:
        core.add(one)
    executor.fail_steps = {3}
    results = run(core)
    failed = [name for name, result in results.items() if result[1] == "error"]
    assert 1 <= len(failed) <= 4
    assert "r5" not in failed
    for one in wanted:
        if one.id in failed:
            last = results[one.id][2]
            assert last.error
            assert last.error_code == 500
        else:
            assert results[one.id][:2] == expected(one)
    assert core.failures == 1
    assert core.stats.kv_usage == 0.0


def test_a_forward_that_raises_is_a_failed_step_too():
    core, executor = make_core()
    forward, calls = executor.forward, []

    def broken_once(plan):
        calls.append(plan)
        if len(calls) == 1:
            for added in plan.added:  # the worker took the rows before it failed
                executor._add(added)
            raise RuntimeError("out of memory")
        forward(plan)

    executor.forward = broken_once
    core.add(request("a", [1, 2, 3]))
    outputs = core.step().outputs
    assert [(output.id, output.finish) for output in outputs] == [("a", "error")]
    assert "memory" not in outputs[0].error
    core.add(request("b", [4, 5, 6]))
    assert run(core)["b"][:2] == expected(request("b", [4, 5, 6]))


def test_failures_in_a_row_end_the_engine_but_scattered_ones_do_not():
    core, executor = make_core()
    executor.fail_steps = set(range(0, 1000, 3))
    for i in range(2 * FAILURE_LIMIT):
        core.add(request(f"s{i}", [i]))
        run(core)
    executor.fail_steps = set()
    core.add(request("clean", [1]))
    assert run(core)["clean"][1] == "length"
    executor.fail_steps = set(range(100_000))
    for i in range(FAILURE_LIMIT - 1):
        core.add(request(f"t{i}", [i]))
        run(core)
    core.add(request("last", [1]))
    with pytest.raises(EngineDead, match="in a row"):
        run(core)


def test_a_full_queue_answers_429_and_keeps_what_it_has():
    core, _ = make_core(max_waiting=3)
    wanted = [request(f"r{i}", [i]) for i in range(5)]
    for one in wanted:
        core.add(one)
    results = run(core)
    refused = {name for name, result in results.items() if result[2].error_code == 429 and result[1] == "error"}
    assert refused == {"r3", "r4"}
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
    assert all(command.run.__doc__ for command in COMMANDS.values())


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
