"""Structured output in the engine's loop: the schedule changes nothing, neighbours do not notice, nothing stays."""

import json
import re
import time
from types import SimpleNamespace

import jsonschema
import pytest
from grammar_kit import EOS, SCHEMAS, THINK, WIDTH, WIRE, json_spec, parted, text_of
from msgspec.structs import replace

from octavo.base.scores import read
from octavo.base.specs import KVLayout, KVSpec, group_layers
from octavo.base.wire import EngineRequest, Sampling
from octavo.engine.constrained import ConstrainedSeat
from octavo.engine.core import Core
from octavo.grammar.crew import Crew
from octavo.grammar.spec import RIDER, GrammarSpec, Thoughts, decode_spec, encode_spec
from octavo.sched.limits import Limits
from octavo.sched.scheduler import IN_USE, Scheduler
from octavo.testing.fake_executor import FakeExecutor, expected_tokens, fold_model

MAX_LEN = 400
SCHEDULES = (
    {"depth": 2},
    {"max_tokens": 9, "depth": 2},
    {"num_blocks": 40},
    {"num_blocks": 40, "depth": 3},
    {"max_seqs": 2},
)


@pytest.fixture(scope="module")
def seats():
    """Seats of one compiler, so that its processes start once."""
    first = ConstrainedSeat(WIDTH, MAX_LEN, 64)
    first.provide(WIRE)

    def make():
        seat = ConstrainedSeat(WIDTH, MAX_LEN, 64)
        seat._compiler = first._compiler
        seat._crew = Crew(first._compiler.setup, first._compiler.table)
        return seat

    yield make
    first.shutdown()


def make_core(seat, *, depth=1, num_blocks=400, max_tokens=64, max_seqs=8, fail_steps=()):
    layout = KVLayout(group_layers([KVSpec(1, 8)]), 4, num_blocks, 2)
    limits = Limits(max_model_len=MAX_LEN, max_num_seqs=max_seqs, max_num_batched_tokens=max_tokens)
    executor = FakeExecutor(WIDTH, fail_steps=fail_steps, max_rows=limits.max_rows)
    executor.start(layout)
    scheduler = Scheduler(layout, limits)
    return Core(scheduler, executor, depth, seat=seat)


def request(name, spec=None, *, prompt=None, seed=0, max_tokens=40, **sampling):
    sampling = {"temperature": 1.0, **sampling}
    return EngineRequest(
        name,
        prompt or [*range(40, 40 + 21)],
        Sampling(seed=seed, max_tokens=max_tokens, eos_token_ids=(EOS,), **sampling),
        riders={} if spec is None else {RIDER: encode_spec(spec)},
    )


def mixed(count=12):
    """Constrained and free ones, by turns; some share a prompt."""
    made = []
    for i in range(count):
        spec = None if i % 3 == 2 else json_spec(SCHEMAS[i % 2], finish_within_budget=True)
        prompt = [(i // 2 * 7 + j) % 200 for j in range(5 + 3 * i)]
        logprobs = 2 if i % 4 == 0 else -1
        made.append(request(f"r{i}", spec, prompt=prompt, seed=i, max_tokens=26 + i, logprobs=logprobs))
    return made


def run(core, wanted, timeout=60.0):
    for one in wanted:
        core.add(one)
    tokens, ends, scores = {}, {}, {}
    end = time.monotonic() + timeout
    while core.has_work and time.monotonic() < end:
        step = core.step()
        if step is None:
            time.sleep(0.001)
            continue
        for output in step.each():
            assert output.id not in ends, "an output after the last"
            tokens.setdefault(output.id, []).extend(output.tokens)
            scores.setdefault(output.id, []).extend(read(output.logprobs))
            if output.finish is not None:
                ends[output.id] = output
    assert not core.has_work
    assert core.stats.kv_usage == 0.0
    return {name: (tokens[name], ends[name], scores[name]) for name in ends}


def check(wanted, results):
    for one in wanted:
        tokens, last, scores = results[one.id]
        assert last.finish in ("stop", "length"), last
        if RIDER in one.riders:
            assert len(tokens) <= one.sampling.max_tokens
            assert (last.finish == "length") == (tokens[-1] != EOS)
            value = json.loads(text_of(tokens))
            jsonschema.validate(value, SCHEMAS[int(one.id[1:]) % 2])
        else:
            assert (tokens, last.finish) == expected_tokens(fold_model(WIDTH), one.tokens, one.sampling)
        if one.sampling.logprobs >= 0:
            assert [score.token for score in scores] == tokens


def under_all_schedules(seats, wanted, results):
    """The core of each schedule, once it has given the same tokens."""
    for options in SCHEDULES:
        core = make_core(seats(), **options)
        again = run(core, wanted)
        assert {name: result[0] for name, result in again.items()} == {
            name: result[0] for name, result in results.items()
        }, options
        assert core.stats.preemptions > 0 or "num_blocks" not in options
        yield core


def test_every_output_is_whole_and_the_schedule_changes_nothing(seats):
    wanted = mixed()
    results = run(make_core(seats()), wanted)
    check(wanted, results)
    assert {results[one.id][1].finish for one in wanted if RIDER in one.riders} == {"stop", "length"}
    for core in under_all_schedules(seats, wanted, results):
        assert not core.executor.violations
    assert not core._seat._guides
    assert not core._seat._sampled


def thinking():
    """Constraints of all kinds behind thoughts, bounded or not, opened by the prompt or by themselves."""
    forms = [
        json_spec(SCHEMAS[0]),
        GrammarSpec("regex", "[a-c]{2,9}", finish_within_budget=False),
        GrammarSpec("choice", json.dumps(["abcabc", "hello", "12name"])),
        GrammarSpec("grammar", 'root ::= "a" root | "b"'),
    ]
    made = []
    for i in range(16):
        thoughts = Thoughts(("</think>",), "<think>" if i % 2 else "", (None, 4, 11)[i % 3])
        spec = replace(forms[i % 4], thoughts=thoughts)
        made.append(request(f"t{i}", spec, prompt=[*range(i % 5, 20)], seed=i, max_tokens=40 + i, logprobs=i % 4 - 1))
    return made


def test_thoughts_before_every_form_are_cut_at_their_bound_whatever_the_schedule(seats):
    wanted = thinking()
    results = run(make_core(seats()), wanted)
    thought = 0
    for one in wanted:
        tokens, last, scores = results[one.id]
        spec = decode_spec(one.riders[RIDER])
        said, text = parted([token for token in tokens if token != EOS])
        opened = not spec.thoughts.opening or tokens[0] == THINK
        if opened and said is None:
            assert (spec.thoughts.most, spec.kind, last.finish) == (None, "regex", "length")  # thoughts without an end
            continue
        if spec.thoughts.most is not None and said is not None:
            assert len(said) <= spec.thoughts.most + bool(spec.thoughts.opening)
        thought += said is not None
        assert (said is None) == (not opened)
        if spec.kind == "json_schema":
            jsonschema.validate(json.loads(text), SCHEMAS[0])
        else:
            pattern = {"regex": "[a-c]{2,9}", "choice": "abcabc|hello|12name", "grammar": "a*b"}[spec.kind]
            assert re.fullmatch(pattern, text.decode())
        if one.sampling.logprobs >= 0:
            assert [score.token for score in scores] == tokens
    assert thought >= len(wanted) // 2
    for _ in under_all_schedules(seats, wanted, results):
        pass


def test_the_device_computes_a_constrained_step_while_the_one_before_is_taken_in(seats):
    """With two steps in flight free and constrained requests both get a token in each."""
    core = make_core(seats(), depth=2)
    spec = json_spec({"type": "object"}, finish_within_budget=False)
    core.add(request("warm", spec, max_tokens=4))
    run(core, [])
    before = core.executor.steps
    free, held = (
        request("free", max_tokens=30),
        request("held", spec, max_tokens=30, seed=3),
    )
    order = []
    executor, take = core.executor, core._seat.review
    forward, sample = executor.forward, executor.sample
    executor.forward = lambda plan: (order.append(f"forward {plan.step}"), forward(plan))[1]
    executor.sample = lambda riders: (order.append("sample"), sample(riders))[1]
    core._seat.review = lambda plan, result: (order.append(f"take {plan.step}"), take(plan, result))[1]
    results = run(core, [free, held])
    assert results["free"][0] == expected_tokens(fold_model(WIDTH), free.tokens, free.sampling)[0]
    assert core.executor.steps - before < 40
    step = before + 12
    at = order.index(f"take {step}")
    assert order[at - 2 : at + 2] == ["sample", f"forward {step + 1}", f"take {step}", "sample"]


def test_the_next_step_is_told_of_before_the_last_is_sampled(seats):
    """Of all steps of a constrained crowd but the first, and those that come after a token that did not stand."""
    core = make_core(seats(), depth=2)
    wanted = [request(f"r{i}", json_spec(SCHEMAS[i]), seed=i, max_tokens=60) for i in range(2)]
    check(wanted, run(core, wanted))
    assert 0.8 * core.executor.steps < core.executor.expected < core.executor.steps
    free = make_core(seats(), depth=2)
    run(free, [request("r2")])
    assert free.executor.expected == 0


@pytest.mark.parametrize("depth", [2, 3])
def test_one_that_comes_while_free_ones_run_ahead_waits_for_their_results(seats, depth):
    core = make_core(seats(), depth=depth)
    run(core, [request("warm", json_spec(SCHEMAS[0]), max_tokens=40)])
    wanted = [request("r1", max_tokens=60), request("r2", json_spec(SCHEMAS[0]), max_tokens=30, seed=3)]
    core.add(wanted[0])
    said = [output for _ in range(5) for output in core.step().each()]
    core.add(wanted[1])
    results = run(core, [])
    tokens = [token for output in said for token in output.tokens] + results["r1"][0]
    assert tokens == expected_tokens(fold_model(WIDTH), wanted[0].tokens, wanted[0].sampling)[0]
    assert json.loads(text_of(results["r2"][0])) is not None
    assert (core.failures, core.executor.violations) == (0, [])


def test_the_crowd_of_a_step_is_gathered_anew_only_when_somebody_comes_or_goes(seats):
    core, gathered = make_core(seats(), depth=2), []
    gather = core._seat._gathered
    core._seat._gathered = lambda plan: (gathered.append(plan.step), gather(plan))[1]
    spec = json_spec({"type": "object"}, finish_within_budget=False, min_tokens=40)
    run(core, [request(f"r{i}", spec, seed=i, max_tokens=40) for i in range(4)])
    assert core.executor.steps >= 40
    assert len(gathered) <= 5


def test_a_constraint_that_compiles_holds_nobody_up(seats):
    core = make_core(seats())
    spec = json_spec({"type": "object", "properties": {"late": {"type": "integer"}}})
    core.add(request("late", spec))
    core.add(request("free", max_tokens=3))
    first = core.step()
    assert [output.id for output in first.outputs] == ["free"]
    results = run(core, [])
    assert json.loads(text_of(results["late"][0])) is not None


@pytest.mark.parametrize(
    ("spec", "max_tokens", "param", "words"),
    [
        (json_spec({"type": "stsring"}), 40, "structured_outputs.type", "not a JSON type"),
        (json_spec({"not": {"type": "null"}}), 40, "structured_outputs", "not"),
        (json_spec(SCHEMAS[1]), 8, "max_tokens", "needs"),
        (GrammarSpec("regex", "a", backend="llama"), 40, "structured_outputs", "llama"),
    ],
)
def test_refusals_are_one_request_s_own(seats, spec, max_tokens, param, words):
    core = make_core(seats())
    results = run(
        core,
        [
            request("good", json_spec(SCHEMAS[0])),
            request("bad", spec, max_tokens=max_tokens),
            request("next", json_spec(SCHEMAS[0])),
        ],
    )
    bad = results["bad"][1]
    assert (bad.finish, bad.error_code, bad.error_param) == ("error", 400, param)
    assert words in bad.error
    for name in ("good", "next"):
        assert results[name][1].finish in ("stop", "length")
        assert isinstance(json.loads(text_of(results[name][0])), dict)


def test_the_number_of_tokens_that_a_refusal_names_is_enough(seats):
    core = make_core(seats())
    spec = json_spec(SCHEMAS[1])
    refused = run(core, [request("a", spec, max_tokens=2)])["a"][1].error
    needed = int(refused.split("needs ")[1].split()[0])
    result = run(core, [request("b", spec, max_tokens=needed)])["b"]
    jsonschema.validate(json.loads(text_of(result[0])), SCHEMAS[1])
    assert len(result[0]) == needed


@pytest.mark.parametrize("first", [None, json_spec(SCHEMAS[0]), json_spec({"const": "not known before"})])
@pytest.mark.parametrize("second", [None, json_spec(SCHEMAS[0]), json_spec({"const": "nor this one"})])
def test_a_name_that_is_in_use_leaves_the_one_that_has_it_as_it_is(seats, first, second):
    alone = request("x", first, seed=1, max_tokens=30)
    calm = run(make_core(seats()), [alone])["x"][0]
    core = make_core(seats())
    core.add(alone)
    core.add(request("x", second, max_tokens=20))
    outputs = core.step().each()
    assert outputs[0].error == IN_USE
    tokens = [token for output in outputs for token in output.tokens]
    core.scheduler.set_aside()
    assert tokens + run(core, [])["x"][0] == calm
    assert not core._seat._guides
    assert not core._held_since


def test_aborts_at_any_time_leave_nothing(seats):
    for at in range(6):
        core = make_core(seats(), depth=2)
        fresh = json_spec({"type": "object", "properties": {f"p{at}": {"type": "integer"}}})
        core.add(request("held", fresh))
        core.add(request("run", json_spec(SCHEMAS[0])))
        for _ in range(at):
            core.step()
        core.abort(["held", "run"])
        run(core, [])
        assert not core._seat._guides
        assert not core._seat.holds


def test_a_failed_step_is_taken_back_and_changes_no_token(seats):
    def tokens(**options):
        wanted = request("lost", json_spec(SCHEMAS[0]), seed=5, max_tokens=60, min_tokens=0)
        return run(make_core(seats(), **options), [wanted])["lost"][0]

    calm = tokens()
    for at in (1, 2, 3):
        assert tokens(fail_steps=(at,)) == calm
        assert tokens(fail_steps=(at,), depth=2) == calm


def test_what_constraints_need_once_is_made_in_a_quiet_moment():
    seat, made = ConstrainedSeat(WIDTH, MAX_LEN, 64), []
    seat.prepare()
    seat._compiler = SimpleNamespace(warm=lambda: made.append(1))
    seat.prepare()
    seat.prepare()
    assert made == [1]


def test_without_a_vocabulary_the_request_is_refused():
    core = make_core(ConstrainedSeat(WIDTH, MAX_LEN, 64))
    assert run(core, [request("a", json_spec(SCHEMAS[0]))])["a"][1].error_code == 400


def test_many_are_held_at_once(seats):
    core = make_core(seats(), max_seqs=16)
    wanted = [request(f"r{2 * i}", json_spec(SCHEMAS[0]), seed=i) for i in range(16)]
    check(wanted, run(core, wanted))


def test_the_wait_for_a_constraint_counts_as_waiting_and_is_told(seats):
    core = make_core(seats())
    spec = json_spec({"type": "object", "properties": {"only-here": {"const": 1}}, "required": ["only-here"]})
    begin = time.perf_counter()
    core.add(request("r1", spec))
    assert core.stats.figures["grammar_waiting"] == 1
    while not core.scheduler.has_work:
        core.step()
        time.sleep(0.001)
    took = time.perf_counter() - begin
    last = run(core, [])["r1"][1]
    figures = core.stats.figures
    assert 0 < figures["grammar_compile_seconds"] <= took
    assert figures["grammar_compile_seconds"] * 0.9 <= last.queued_s <= took + 1
    assert (figures["grammar_compiles"], figures["grammar_waiting"]) == (1, 0)
    assert figures["grammar_mask_seconds"] > 0
    run(core, [request("r2", spec)])
    assert core.stats.figures["grammar_cache_hits"] == 1
    core.add(request("r3", json_spec({"const": "gone"})))
    core.abort(["r3"])
    core.step()
    assert core.stats.figures["grammar_waiting"] == 0
    assert not core._held_since


class _Spent:
    """A matcher of an engine that gives up."""

    is_accepting = False

    def fill(self, row):
        del row
        return False

    @staticmethod
    def fill_many(matchers, masks, places):
        return {place: matcher.fill(masks[place]) for matcher, place in zip(matchers, places)}

    @staticmethod
    def accept_many(matchers, tokens):
        del tokens
        return [False] * len(matchers)


class _Stuck(_Spent):
    """One that has come to where nothing follows."""

    def fill(self, row):
        row.fill(0)
        return True


@pytest.mark.parametrize("matcher", [_Spent(), _Stuck()])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_constraint_that_fails_on_the_way_ends_its_request_alone(seats, depth, matcher):
    core = make_core(seats(), depth=depth)
    wanted = [request(f"r{i}", json_spec(SCHEMAS[i % 2]) if i % 2 else None, seed=i) for i in (2, 3, 4, 5)]
    lost = request("lost", json_spec(SCHEMAS[1], param="guided_json", finish_within_budget=False), seed=9)
    core.add(lost)
    begin = time.monotonic()
    while "lost" not in core._seat._guides and time.monotonic() - begin < 30:
        core.step()
    core.step()
    core._seat._guides["lost"]._matcher = matcher
    results = run(core, wanted)
    check(wanted, {name: found for name, found in results.items() if name != "lost"})
    last = results["lost"][1]
    assert (last.finish, last.error_code, last.error_param) == ("error", 400, "guided_json")
    assert last.error.startswith("structured output: ")
