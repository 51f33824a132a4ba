"""Compiling beside the loop: bombs are refused in time and alone, the cache is bounded, good follows bad."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from threading import Thread
from types import SimpleNamespace

import pytest
from grammar_kit import SCHEMAS, WIDTH, WIRE, json_spec
from msgspec.structs import replace

from octavo.base.errors import Overloaded, UserError
from octavo.grammar import compile_worker, fork, frames
from octavo.grammar import compiler as compiler_module
from octavo.grammar.cache import ByteCache
from octavo.grammar.child import Child
from octavo.grammar.compiler import Compiler
from octavo.grammar.forms import check_shape, check_spec
from octavo.grammar.frames import Verdict
from octavo.grammar.llguidance import LLGuidance
from octavo.grammar.schema import normal
from octavo.grammar.spec import GrammarSpec, decode_spec, encode_spec

GOOD = json_spec(SCHEMAS[1])
IN_TIME_S = frames.PATIENCE_S + 20.0  # room for a machine that does much else


@pytest.fixture(scope="module")
def compiler():
    made = Compiler(WIRE, WIDTH)
    made.submit(GOOD).result(60)
    yield made
    made.close()


def deep(levels):
    schema: dict = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


BOMBS = {
    "no type": json_spec({"type": "stsring"}),
    "properties a list": json_spec({"properties": []}),
    "format a schema": json_spec({"type": "string", "format": {"pattern": "a"}}),
    "too deep": json_spec(deep(40)),
    "too large": GrammarSpec("json_schema", json.dumps({"description": "x" * 70_000})),
    "not json": GrammarSpec("json_schema", "{"),
    "never": GrammarSpec("json_schema", "false"),
    "recursion without end": json_spec(
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}},
        }
    ),
    "nothing fits": json_spec({"type": "array", "minItems": 1, "items": False}),
    "ref to nowhere": json_spec({"$ref": "#/$defs/none"}),
    "ref abroad": json_spec({"$ref": "http://localhost/schema.json"}),
    "look ahead": GrammarSpec("regex", "(?=x)"),
    "back reference": GrammarSpec("regex", r"(a)\1"),
    "open bracket": GrammarSpec("regex", "["),
    "high count": GrammarSpec("regex", "a{1,1000000}"),
    "long regex": GrammarSpec("regex", "a" * 5000),
    "no regex": GrammarSpec("regex", ""),
    "no choice": GrammarSpec("choice", "[]"),
    "choice of numbers": GrammarSpec("choice", "[1]"),
    "unknown rule": GrammarSpec("grammar", 'start: "a" | b'),
    "megabyte": GrammarSpec("grammar", "start: " + '"a" ' * 300_000),
    "no grammar": GrammarSpec("grammar", "  "),
    "tag without parts": GrammarSpec("structural_tag", "{}"),
    "tag of a strange type": GrammarSpec("structural_tag", '{"format":{"type":"__class__"}}'),
    "tag of several types": GrammarSpec("structural_tag", '{"format":{"type":["tag"]}}'),
    "tag with a schema that is none": GrammarSpec(
        "structural_tag", '{"structures":[{"begin":"<a>","schema":{"minimum":"x"},"end":"</a>"}],"triggers":["<a"]}'
    ),
    "structures that are none": GrammarSpec("structural_tag", '{"structures":3,"triggers":["<"]}'),
    "tags that are none": GrammarSpec(
        "structural_tag", '{"format":{"type":"tags_with_separator","separator":",","tags":[1]}}'
    ),
    "text up to a number": GrammarSpec(
        "structural_tag", '{"format":{"type":"sequence","elements":[{"type":"any_text"},{"type":"tag","begin":3}]}}'
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_time_and_the_next_is_served(compiler, name):
    begin = time.monotonic()
    future = compiler.submit(BOMBS[name])
    if name in ("recursion without end", "nothing fits"):  # the engine may compile it; then no text was found
        with suppress(UserError):
            assert future.result(30).opening is None
    else:
        with pytest.raises(UserError) as caught:
            future.result(30)
        assert caught.value.status == 400
        assert caught.value.param.split(".")[0] == "structured_outputs"
        assert len(caught.value.message) < 600
        assert "\n" not in caught.value.message
        # As of one that its fork did not survive.
        assert not any(text in caught.value.message for text in (fork.TOO_LARGE, fork.FAILED))
        assert "| start:" not in caught.value.message  # a listing of what the caller never wrote
    assert time.monotonic() - begin < IN_TIME_S
    fresh = json_spec({"type": "object", "properties": {name: {"type": "integer"}}})
    assert compiler.submit(fresh).result(30).opening is not None


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(.*){50}", "((a{1,100}){1,100}){1,100}", "(x+x+)+y", ".*a.{400}b", "(a|b|ab)*c{1,900}"]
)
def test_expressions_that_explode_elsewhere_end_in_time(compiler, pattern):
    begin = time.monotonic()
    with suppress(UserError):
        assert compiler.submit(GrammarSpec("regex", pattern)).result(60) is not None
    assert time.monotonic() - begin < IN_TIME_S


def test_texts_that_a_tag_excludes_are_not_dropped():
    text = {"type": "any_text", "excludes": ["a"]}
    for form in (text, {"type": "sequence", "elements": [text, {"type": "const_string", "value": "b"}]}):
        with pytest.raises(UserError, match="excludes, which cannot be enforced"):
            check_spec(GrammarSpec("structural_tag", json.dumps({"format": form})))
    schema = {"type": "object", "properties": {"excludes": {"type": "integer"}}}
    for form in ({**text, "excludes": []}, {"type": "json_schema", "json_schema": schema}):
        assert check_spec(GrammarSpec("structural_tag", json.dumps({"format": form})))


def test_the_path_in_the_schema_is_named(compiler):
    spec = json_spec({"type": "object", "properties": {"a": {"type": "stsring"}}}, param="guided_json")
    with pytest.raises(UserError) as caught:
        compiler.submit(spec).result(30)
    assert caught.value.param == "guided_json.properties.a.type"
    with pytest.raises(UserError, match="not"):
        compiler.submit(json_spec({"not": {}})).result(30)


@pytest.mark.parametrize(("name", "reference"), [("a b", "a%20b"), ("a/b", "a~1b"), ("a%b", "a%25b"), ("a~b", "a~0b")])
def test_references_are_pointers_in_a_fragment(compiler, name, reference):
    schema = {"$ref": f"#/$defs/{reference}", "$defs": {name: {"const": name}}}
    opening = compiler.submit(json_spec(schema)).result(30).opening
    assert json.loads(compiler.table.text(opening)) == name


def slow(number):
    """A grammar that takes seconds."""
    rules = [f'r{index}: "a" r{index + 1} | r{index + 1} "b"' for index in range(900)]
    return GrammarSpec("grammar", "\n".join([f'start: "{number}" r0', *rules, 'r900: "z"']))


def test_many_slow_ones_at_once_hold_nobody_up(compiler, monkeypatch):
    monkeypatch.setattr(compiler_module, "PATIENCE_S", 20.0)  # a machine that does much else is not to be the judge
    begin = time.monotonic()
    hostile = [compiler.submit(slow(number)) for number in range(16)]
    fresh = [compiler.submit(json_spec({"type": "object", "properties": {f"m{i}": {}}})) for i in range(4)]
    for future in fresh:
        assert future.result(30).opening is not None
    assert sum(future.done() for future in hostile) < 16
    for future in hostile:
        with pytest.raises(UserError) as caught:
            future.result(30)
        assert caught.value.status in (400, 429)
    assert time.monotonic() - begin < IN_TIME_S
    assert compiler.submit(GOOD).done()


def test_what_a_fork_dies_of_is_told():
    for cause, cpu_s, evicted, message, busy in (
        (signal.SIGPROF, 1.0, False, fork.TOO_SLOW, False),
        (signal.SIGALRM, 0.5, False, fork.TOO_SLOW, False),
        (signal.SIGALRM, 0.01, False, None, True),
        (signal.SIGKILL, 0.5, True, fork.TOO_SLOW, False),
        (signal.SIGKILL, 0.5, False, fork.TOO_LARGE, False),
        (signal.SIGSEGV, 0.1, False, fork.TOO_LARGE, False),
        (1 << 8, 0.1, False, fork.FAILED, False),  # it ended by itself
    ):
        verdict = fork.sentence(cause, cpu_s, evicted)
        assert (verdict.error, verdict.busy) == (message, busy)
        assert verdict.passing == (not busy and cause in (signal.SIGALRM, signal.SIGKILL))


def test_a_refusal_of_a_bad_hour_is_not_kept(compiler, monkeypatch):
    spec = json_spec({"type": "object", "properties": {"again": {"type": "integer"}}})
    for verdict in (
        Verdict(error=fork.TOO_SLOW, passing=True),
        Verdict(error=fork.TOO_SLOW),
    ):
        monkeypatch.setattr(compiler.child, "judge", lambda *_, verdict=verdict: verdict)
        with pytest.raises(UserError, match="takes too long"):
            compiler.submit(spec).result(30)
        monkeypatch.undo()
        if verdict.passing:
            assert compiler.submit(spec).result(30).opening is not None
            spec = json_spec({"type": "object", "properties": {"once": {"type": "integer"}}})
    with pytest.raises(UserError, match="takes too long"):
        compiler.submit(spec).result(30)


def test_a_constraint_that_waits_past_its_time_is_told_to_come_again(compiler):
    with pytest.raises(Overloaded):
        compiler.child.judge("llguidance", json_spec({"const": "late"}), time.monotonic() - 30)


def test_a_process_that_is_lost_is_replaced():
    made = Compiler(WIRE, WIDTH)
    try:
        assert made.submit(json_spec({"type": "null"})).result(60)
        first = made.child.pid
        assert first is not None
        waits = [made.submit(slow(0)), *(made.submit(json_spec({"const": number})) for number in range(20))]
        os.kill(first, signal.SIGKILL)
        for future in waits[1:]:
            assert future.result(60).opening is not None  # by the next
        with pytest.raises(UserError, match="too long"):
            waits[0].result(60)
        assert made.child.pid not in (None, first)
    finally:
        made.close()
    assert made.child.pid is None


def test_no_fork_of_a_lost_process_stays(compiler):
    """Lost right after forking: what had not bound itself to it yet must neither stay nor hide the loss."""
    for round in range(3):
        compiler.submit(json_spec({"const": f"{round} first"})).result(60)
        first = compiler.child.pid
        assert first is not None
        waits = [compiler.submit(json_spec({"const": f"{round} {i}", "type": "string"})) for i in range(12)]
        time.sleep(0.008 * round)
        running = children(first)
        os.kill(first, signal.SIGKILL)
        for future in waits:
            assert future.result(frames.STARVED_S - 5).opening is not None
        assert not [each for each in running if os.path.exists(f"/proc/{each}/exe")]


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def test_a_fork_is_kept_for_the_next_unless_one_was_dear(compiler):
    pid = compiler.child.pid

    def kept(spec):
        with suppress(UserError):
            compiler.submit(spec).result(30)
        end = time.monotonic() + 10
        while len(found := children(pid)) > compile_worker.IDLE:  # those of a crowd before are on their way out
            assert time.monotonic() < end
            time.sleep(0.01)
        return set(found)

    first = kept(json_spec({"const": "kept first"}))
    assert first
    assert kept(json_spec({"const": "kept second"})) <= first
    assert kept(json_spec({"type": "stsring"})) <= first  # a refusal costs little too
    with pytest.raises(UserError):
        compiler.submit(slow("kept")).result(30)
    crowd = [compiler.submit(json_spec({"const": f"kept {i}"})) for i in range(30)]
    assert all(future.result(60).opening is not None for future in crowd)
    assert kept(json_spec({"const": "kept last"}))


def test_where_the_kernel_helps_little_a_fork_is_ended_all_the_same():
    """Without times of processes, and without a signal at the end of the parent."""
    code = """import os
from types import SimpleNamespace
from octavo.grammar import fork
from octavo.grammar.frames import Job, Verdict
fork.die_with_parent = lambda: None
workshop = SimpleNamespace(run=lambda job: Verdict(error=str(job.number)))
kept = fork.Fork(workshop, Job(1, "any"), os.dup(2))
while not kept.is_idle:
    kept.hear()
fork.Fork._used_s = lambda fork: None
assert kept.give(Job(2, "any")) and kept.cpu_s >= fork.ENOUGH_CPU_S
while not kept.is_idle:
    kept.hear()
kept._socket.close()
os.waitpid(kept.pid, 0)"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


def test_what_a_fork_has_taken_is_not_counted_against_the_next(compiler):
    """All of these take more processor time and memory together than one may."""
    for number in range(250):
        spec = json_spec({"type": "object", "properties": {f"n{number}": {"type": "string", "maxLength": 40}}})
        assert compiler.submit(spec).result(30).opening is not None


def test_where_the_system_has_a_limit_of_its_own_no_constraint_fails_for_that():
    code = """import resource
from octavo.grammar.workshop import address_space, limit_memory
most = address_space() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
limit_memory(256 << 20)
assert resource.getrlimit(resource.RLIMIT_AS) == (most, most)"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_known_is_there_at_once_and_equal_waits_are_one(compiler):
    assert compiler.submit(GOOD).done()
    spec = json_spec({"type": "object", "properties": {"waits": {"type": "integer"}}})
    first, second = (
        compiler.submit(spec),
        compiler.submit(json_spec(json.loads(spec.source), after=("x",), min_tokens=3)),
    )
    assert first.result(30) is second.result(30)


@pytest.mark.skipif(find_spec("xgrammar") is None, reason="the extra is not installed")
def test_the_second_engine_takes_what_the_first_refuses(compiler):
    schema = {"type": "object", "propertyNames": {"pattern": "^a+$"}, "additionalProperties": {"type": "integer"}}
    assert type(compiler.submit(json_spec(schema)).result(120).grammar).__name__ == "XGCompiled"
    with pytest.raises(UserError, match="propertyNames"):
        compiler.submit(json_spec(schema, backend="llguidance")).result(60)


def test_the_cache_stays_under_its_cap():
    cache: ByteCache[int] = ByteCache(1000)
    for number in range(10_000):
        cache.put(number, number, 90)
        assert cache.num_bytes <= 1000
    assert len(cache) == 11
    assert cache.get(9_999) == 9_999
    assert cache.get(1) is None
    cache.put("large", 1, 2000)
    assert cache.get("large") is None
    cache.put(9_999, 5, 100)
    assert cache.get(9_999) == 5
    assert cache.num_bytes <= 1000


def test_alternatives_that_exclude_each_other_are_any_of():
    apart = {
        "oneOf": [{"type": "string"}, {"type": "integer"}, {"$ref": "#/$defs/o"}],
        "$defs": {"o": {"type": "null"}},
    }
    assert "anyOf" in normal(apart, apart, closed=False)
    for alternatives in (
        [{"type": "integer"}, {"type": "number"}],
        [{"minimum": 1}, {"type": "string"}],
        [True, {"type": "string"}],
    ):
        assert "oneOf" in normal({"oneOf": alternatives}, {}, closed=False)
    assert normal({"properties": {"a": {"format": "int32"}}}, {}, closed=True) == {
        "properties": {"a": {}},
        "additionalProperties": False,
    }


def test_shapes_are_checked_without_compiling():
    for name in (
        "no type",
        "properties a list",
        "format a schema",
        "tag with a schema that is none",
        "too deep",
        "too large",
        "not json",
        "high count",
        "megabyte",
        "no choice",
    ):
        with pytest.raises(UserError):
            check_shape(BOMBS[name])
    check_shape(GOOD)
    check_shape(json_spec({"oneOf": [{"type": "object", "required": None}, {"type": "object", "required": ["a"]}]}))
    check_spec(json_spec({"allOf": [{"type": "object", "required": None}, {"required": ["a"]}]}))
    assert check_spec(GOOD).hints
    assert decode_spec(encode_spec(GOOD)) == GOOD


def test_a_constraint_that_is_compiled_before_anyone_listens(monkeypatch):
    compiler = Compiler(WIRE, WIDTH)
    done = Future()
    done.set_result("compiled")
    monkeypatch.setattr(compiler._threads, "submit", lambda *_: done)
    asked = Thread(target=compiler.submit, args=(json_spec({"type": "null"}),), daemon=True)
    asked.start()
    asked.join(5)
    assert not asked.is_alive(), "the caller waits for itself"
    assert not compiler._waiting
    compiler.close()


def test_a_crowd_of_sound_constraints_is_served_whole(compiler):
    """More than may be there at once stand in line; nobody is sent away."""
    futures = [compiler.submit(json_spec({"type": "object", "properties": {f"c{i}": {}}})) for i in range(60)]
    assert all(future.result(60).opening is not None for future in futures)


class Unlocked(LLGuidance):
    """As from Python 3.12 on: whoever finds nothing there builds it."""

    built = 0

    @property
    def _tokenizer(self):
        if "made" not in self.__dict__:
            type(self).built += 1
            time.sleep(0.2)
            self.__dict__["made"] = LLGuidance._tokenizer.func(self)
        return self.__dict__["made"]


def test_a_crowd_that_comes_first_builds_an_engine_once(monkeypatch):
    monkeypatch.setattr(compiler_module, "BACKENDS", SimpleNamespace(get=lambda _: Unlocked))
    compiler = Compiler(WIRE, WIDTH)
    try:
        specs = [json_spec({"type": "object", "properties": {f"d{i}": {}}}) for i in range(12)]
        for future in [compiler.submit(spec) for spec in specs]:
            future.result(60)
    finally:
        compiler.close()
    assert Unlocked.built == 1


def test_a_constraint_whose_end_is_not_known_needs_no_engine(compiler, monkeypatch):
    """A request that insists on an end is refused by the verdict alone; one that does not gets its constraint."""
    monkeypatch.setattr(compiler, "_build", lambda *_: pytest.fail("built"))
    endless = json_spec({"type": "array", "minItems": 10**9})
    with pytest.raises(UserError, match="no text was found") as caught:
        compiler.submit(replace(endless, param="tools")).result(60)
    assert caught.value.param == "tools"
    monkeypatch.undo()
    for spec in (replace(endless, finish_within_budget=False), replace(endless, insist=False)):
        assert compiler.submit(spec).result(60).opening is None


@pytest.mark.parametrize(
    ("backend", "spec", "glances"),
    [
        ("llguidance", GOOD, 0),
        ("llguidance", GrammarSpec("grammar", 'start: "a"'), 1),
        ("xgrammar", GOOD, 1),
    ],
)
def test_only_what_nobody_has_looked_at_is_looked_at_before_an_engine_is_loaded(monkeypatch, backend, spec, glances):
    asked = []

    def ask(_backend, spec, _deadline_s, _life, *, glance=False):
        asked.append("glance" if glance else "load" if spec is None else "try")
        return Verdict()

    child = Child(frames.Setup(WIRE, WIDTH, 1 << 20))
    monkeypatch.setattr(child, "_ask", ask)
    for _ in range(2):
        child.judge(backend, spec, 0.0)
    assert asked == ["glance"] * glances + ["load", "try", "try"]


def test_a_fork_gives_way_from_its_second_constraint_on():
    """Its first may have waited for an engine."""
    code = """import os, msgspec
from types import SimpleNamespace
from octavo.grammar import fork
from octavo.grammar.frames import Answer, Job, Verdict
workshop = SimpleNamespace(run=lambda job: Verdict(error=str(os.nice(0))))
kept = fork.Fork(workshop, Job(1, "any"), os.dup(2))
said = []
for number in (2, 3):
    while not (answer := kept.hear()):
        pass
    said.append(int(msgspec.msgpack.decode(answer[fork.LENGTH :], type=Answer).verdict.error))
    while not kept.is_idle:
        kept.hear()
    assert kept.give(Job(number, "any"))
own = os.nice(0)
first = min(19, own + fork.NICENESS)
assert said == [first, min(19, max(first, fork.OWN_NICENESS + fork.NICENESS))], said"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


def test_where_an_end_is_known_nobody_who_does_not_insist_on_it_waits(compiler):
    for name, first in (("insisted", True), ("not insisted", False)):
        spec = json_spec({"type": "object", "properties": {name: {}}})
        made = compiler.submit(replace(spec, finish_within_budget=first)).result(60)
        assert compiler.submit(replace(spec, finish_within_budget=not first)).result(0) is made
