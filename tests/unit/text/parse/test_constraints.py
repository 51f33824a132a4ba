"""Grammars of dialects: whatever they let through is read back as the calls that were asked for."""

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from msgspec.structs import replace
from parse_kit import Said, tool
from test_golden import WRITERS

from octavo.base.wire import Vocabulary
from octavo.grammar import alone
from octavo.grammar.closing import Closer
from octavo.grammar.closings import closings
from octavo.grammar.compiled import Recipe, build
from octavo.grammar.forms import check_spec
from octavo.grammar.guide import Guide
from octavo.grammar.llguidance import LLGuidance
from octavo.grammar.spec import GrammarSpec, Thoughts
from octavo.grammar.vocabulary import VocabularyTable
from octavo.text.parse.base import Choice, ToolSchemas
from octavo.text.parse.constrain import (
    answer_in_channel,
    answer_or_calls,
    behind,
    budget_grammar,
    calls_grammar,
    channel_budget,
)
from octavo.text.parse.lark import Terms
from octavo.text.parse.parser import Parser, message_reader
from octavo.text.parse.registry import reasoning_parser, tool_parser

TOOLS = [
    tool(
        "find",
        ["city", "unit"],
        city={"type": "string", "description": "x" * 50},
        unit={"type": "string", "enum": ["c", "f"]},
        days={"type": "integer"},
        exact={"type": "boolean"},
        where={"type": "object", "properties": {"lat": {"type": "integer"}}, "additionalProperties": False},
        tags={"type": "array", "items": {"type": "integer"}},
    ),
    tool("now"),
]
for _each in TOOLS:
    _each["function"]["parameters"]["additionalProperties"] = False
SCHEMAS = ToolSchemas(TOOLS)
EOS = 256
# Bytes to write free text with; others only where the grammar leaves no choice.
LIKED = [ord(char) for char in 'abc1"}],<\n']


@cache
def kit(name: str, special: bool) -> tuple[dict[str, int], LLGuidance]:
    marks = [*tool_parser(name).marks, "<think>", "</think>"] if special else []
    ids = {mark: 257 + number for number, mark in enumerate(marks)}
    tokens = [bytes([value]) for value in range(256)] + [b"<eos>"] + [mark.encode() for mark in marks]
    table = VocabularyTable(Vocabulary(tokens, [EOS, *ids.values()], [EOS]), len(tokens))
    return ids, LLGuidance(table)


def tails(ids: dict[str, int]) -> list[list[int]]:
    """What ends free text in some dialect, as tokens: a walk would hardly find it by chance."""
    texts = ["\n</parameter>\n", "</arg_value>", "<escape>", '<|"|>', "</think>", "<|end|>", '"']
    return [[ids[text]] if text in ids else list(text.encode()) for text in texts]


def begun(name: str, special: bool, spec: GrammarSpec) -> Guide:
    _, engine = kit(name, special)
    table = engine._vocabulary
    spec = replace(spec, finish_within_budget=False)
    return Guide(
        build(Recipe("llguidance", check_spec(spec), closings(table), None), engine, table),
        spec,
        table,
        frozenset({EOS}),
        9999,
    )


def allowed(guide: Guide) -> list[int]:
    row = np.zeros(guide.vocabulary.words, dtype=np.int32)
    alone.fill(guide, row)
    assert guide.failure is None
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def says(guide: Guide, tokens: Sequence[int]) -> int:
    """How many of the tokens the guide lets come, one after the other."""
    for number, token in enumerate(tokens):
        if token not in allowed(guide):
            return number
        assert alone.take(guide, token) == token
    return len(tokens)


def fits(name: str, spec: GrammarSpec, tokens: Sequence[int], *, whole: bool = True) -> bool:
    """Whether an output may be these tokens; with `whole`, and nothing more."""
    guide = begun(name, True, spec)
    return says(guide, tokens) == len(tokens) and (not whole or EOS in allowed(guide))


def walk(name: str, special: bool, spec: GrammarSpec, seed: int, prefix: str = "") -> str:
    """A text that the spec allows, made token by token from the masks."""
    ids, _ = kit(name, special)
    guide = begun(name, special, spec)
    chance = random.Random(seed)
    line: list[int] = []
    names = {token: mark for mark, token in ids.items()}
    for _ in range(3000):
        if chance.random() < 0.3:
            tail = chance.choice(tails(ids))
            line += tail[: says(guide, tail)]
        may = allowed(guide)
        if EOS in may and (len(may) == 1 or chance.random() < 0.4):
            text = b"".join(names[token].encode() if token in names else bytes([token]) for token in line)
            return prefix + text.decode("utf-8", "replace")
        liked = [token for token in may if token in LIKED or token > EOS] or [t for t in may if t != EOS]
        token = chance.choice(liked)
        assert alone.take(guide, token) == token
        line.append(token)
    raise AssertionError("no end: " + repr(bytes(token for token in line if token < 256)[-80:]))


def spec_of(name: str, special: bool, choice: Choice, **more: Any) -> GrammarSpec:
    ids, _ = kit(name, special)
    given = {"thoughts": None, "opened": False, "budget": None, **more}

    return calls_grammar(
        tool_parser(name), SCHEMAS, choice, given["thoughts"], given["opened"], given["budget"], Terms(ids, [EOS])
    )


def read(name: str, text: str, thoughts: Any = None, opened: bool = False) -> Said:
    dialect = tool_parser(name)
    if hasattr(dialect, "read_message"):
        own = Parser(lambda source, out, state: dialect.read_message(source, out, SCHEMAS, state))
    else:
        own = Parser(message_reader(thoughts, dialect, SCHEMAS), opened=opened)
    return Said([*own.feed(text), *own.finish()])


def check(said: Said, names: tuple[str, ...]) -> None:
    assert said.calls
    for called, arguments in said.calls:
        assert called in names
        jsonschema.validate(json.loads(arguments), SCHEMAS.parameters[called])


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "characters"])
@pytest.mark.parametrize("name", WRITERS)
def test_required_calls_are_read_back(name: str, special: bool) -> None:
    if name == "openai" and not special:
        pytest.skip("a vocabulary without its marks cannot speak it")
    several = 0
    for seed in range(60):
        if seed >= 12 and (several or name == "openai"):
            break
        spec = spec_of(name, special, Choice("required", ("find", "now")))
        text = walk(name, special, spec, seed)
        said = read(name, text)
        check(said, ("find", "now"))
        assert said.text == "", text
        several += len(said.calls) > 1
    assert several or name == "openai"


@pytest.mark.parametrize("name", WRITERS)
def test_named_and_single_calls(name: str) -> None:
    for seed in range(6):
        said = read(name, walk(name, True, spec_of(name, True, Choice("required", ("find",), False)), seed))
        check(said, ("find",))
        assert len(said.calls) == 1


@pytest.mark.parametrize("name", WRITERS)
def test_auto_holds_behind_the_opening_mark(name: str) -> None:
    choice = Choice("auto", ("find", "now"), strict=True)
    spec = spec_of(name, True, choice)
    assert spec.after == tool_parser(name).triggers
    if spec.after:
        mark = next((each for each in spec.after if each in kit(name, True)[0]), spec.after[0])
        before = "<|channel|>commentary" if name == "openai" else "Well. "
        behind_mark = replace(spec, after=(), optional=False)
        said = read(name, walk(name, True, behind_mark, 1, prefix=before + mark))
        check(said, ("find", "now"))
    else:  # bare dialects: the grammar holds from the start and lets plain text pass
        compiled = kit(name, True)[1].compile(check_spec(spec))
        assert compiled.matcher().push(list(b"Hello [1] {2}"))
        opener = b'{"x' if name == "llama3_json" else b"[x"
        assert not compiled.matcher().push(list(opener))


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("name", [name for name in WRITERS if tool_parser(name).triggers and name != "openai"])
def test_a_call_ends_whole_if_there_was_room_when_it_began(name: str, mode: Any) -> None:
    ids, engine = kit(name, True)
    table = engine._vocabulary
    spec = spec_of(name, True, Choice(mode, ("find", "now"), strict=True))
    prefix: list[int] = []
    if mode == "auto":
        mark = next((each for each in spec.after if each in ids), spec.after[0])
        prefix = [*b"Well. ", *([ids[mark]] if mark in ids else mark.encode())]
    form = check_spec(spec)
    grammar, known = engine.compile(form), closings(table, form.hints, longest=form.longest)
    opening = Closer(table, known).shortest(grammar.matcher())
    assert opening is not None
    compiled = build(Recipe("llguidance", form, known.opened(table, opening), opening), engine, table)
    names = {token: mark for mark, token in ids.items()}
    for seed in range(8):
        chance = random.Random(seed)
        limit = len(prefix) + len(opening) + chance.choice([0, 1, 5, 20, 60, 120])
        guide = Guide(compiled, spec, table, frozenset({EOS}), limit)
        line: list[int] = []
        while len(line) < limit and EOS not in line:
            may = [token for token in allowed(guide) if token in LIKED or token >= EOS] or allowed(guide)
            sampled = prefix[len(line)] if len(line) < len(prefix) else chance.choice(may)
            line.append(alone.take(guide, sampled))
        text = b"".join(names[token].encode() if token in names else bytes([token]) for token in line if token != EOS)
        said = read(name, text.decode("utf-8", "replace"))
        assert said.text.startswith("Well." if mode == "auto" else "")
        check(said, ("find", "now"))


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("budget", [None, 5])
def test_thoughts_go_before_calls(opened: bool, budget: int | None) -> None:
    thoughts = reasoning_parser("qwen3")
    choice = Choice("required", ("now",), False)
    spec = spec_of("hermes", True, choice, thoughts=thoughts, opened=opened, budget=budget)
    assert spec.thoughts == Thoughts(("</think>",), "" if opened else "<think>", budget)
    thought = 0
    for seed in range(8):
        text = walk("hermes", True, spec, seed)
        said = read("hermes", text, thoughts, opened)
        check(said, ("now",))
        thought += bool(said.reasoning)
        inside = text.removeprefix("<think>").partition("</think>")[0]
        for mark in (*tool_parser("hermes").marks, "<think>"):
            inside = inside.replace(mark, "#")  # one token
        assert budget is None or "</think>" not in text or len(inside) <= budget
    assert thought


def test_budget_alone() -> None:
    ids, _ = kit("hermes", True)
    spec = budget_grammar(reasoning_parser("qwen3"), True, 3, Terms(ids, [EOS]))
    end = ids["</think>"]
    assert fits("hermes", spec, [97, end, 98])
    assert not fits("hermes", spec, [97, 97, 97, 97], whole=False)
    assert fits("hermes", spec, [97, 97, 97, end, 10, 98, ids["<tool_call>"], 99])


def test_large_tools_make_small_grammars() -> None:
    spec = spec_of("hermes", True, Choice("required", ("find",)))
    assert "xxxx" not in spec.source


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "functiongemma"])
def test_bounds_of_plain_text(name: str) -> None:
    """Where strings are written without quotes, their length and pattern hold too."""
    for bounds, good, bad in (
        ({"minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
        ({"pattern": "^a/b+$"}, ["a/b", "a/bb"], ["a/", "xa/b", "a/bx"]),
        ({"pattern": "b"}, ["b", "abc"], ["ac"]),
    ):
        schemas = ToolSchemas([tool("f", ["x"], x={"type": "string", **bounds})])
        ids, engine = kit(name, True)
        spec = calls_grammar(
            tool_parser(name), schemas, Choice("required", ("f",), False), None, False, None, Terms(ids, [EOS])
        )
        grammar = engine.compile(check_spec(spec))
        for value in (*good, *bad):
            text = WRITERS[name](("f", {"x": value}))
            tokens = []
            while text:
                mark = next((mark for mark in ids if text.startswith(mark)), None)
                tokens += [ids[mark]] if mark else list(text[0].encode())
                text = text[len(mark or text[0]) :]
            assert grammar.matcher().push(tokens) is (value in good), (bounds, value)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("opened", [True, False])
def test_a_budget_before_calls_that_may_come(special: bool, opened: bool) -> None:
    """Strict tools with auto: free text, in which a call once begun must fit, behind bounded thoughts."""
    ids, _ = kit("hermes", True)
    ids = ids if special else {"</think>": ids["</think>"], "<think>": ids["<think>"]}
    choice = Choice("auto", ("now",), strict=True)
    thoughts = reasoning_parser("qwen3")
    spec = calls_grammar(tool_parser("hermes"), SCHEMAS, choice, thoughts, opened, 3, Terms(ids, [EOS]))
    mark = [ids["<tool_call>"]] if special else list(b"<tool_call>")
    close = [ids["</tool_call>"]] if special else list(b"</tool_call>")
    before = [97, 97, 97, ids["</think>"]] if opened else [ids["<think>"], 97, ids["</think>"]]
    assert not fits("hermes", spec, [97] * 4 if opened else [ids["<think>"], 97, 97, 97, 97], whole=False)
    for head in (before, [] if not opened else before):
        said = [*head, *b"Well <b>"]
        assert fits("hermes", spec, said)
        assert fits("hermes", spec, [*said, *mark, *b'\n{"name": "now", "arguments": {}}\n', *close])
        assert not fits("hermes", spec, [*said, *mark, *b'\n{"name": "other"'], whole=False)


def test_a_budget_in_channels() -> None:
    ids, engine = kit("openai", True)
    terms = Terms(ids, [EOS])
    channel, message, end, start = (ids[f"<|{name}|>"] for name in ("channel", "message", "end", "start"))
    think = [channel, *b"analysis", message]
    spec = channel_budget(tool_parser("openai"), 3, terms)
    state = engine.compile(check_spec(spec)).matcher()
    assert not state.copy().push([*think, *b"aaaa"])
    answer = [channel, *b"final", message, *b"Hello"]
    call = [channel, *b"commentary to=functions.now ", ids["<|constrain|>"], *b"json", message, *b"{}"]
    for rest in (answer, call, [channel, *b"commentary", message, *b"So", end, start, *b"assistant", *call]):
        for thoughts in ([], [*think, *b"aaa", end, start, *b"assistant"]):
            said = state.copy()
            assert said.push([*thoughts, *rest])
            assert said.is_accepting
    again = [*think, *b"a", end, start, *b"assistant", *think]
    assert not state.copy().push(again)
    for mode in ("auto", "required"):
        spec = calls_grammar(tool_parser("openai"), SCHEMAS, Choice(mode, ("now",), strict=True), None, False, 3, terms)
        state = engine.compile(check_spec(spec)).matcher()
        assert not state.copy().push([*think, *b"aaaa"])
        assert state.copy().push([*think, *b"aaa", end, start, *b"assistant", *call])
        assert state.copy().push(answer) == (mode == "auto")


ANSWERS = {
    "json": GrammarSpec("json_schema", json.dumps({"type": "integer"}), param="response_format"),
    "choice": GrammarSpec("choice", '["12", "34"]', param="guided_choice"),
    "regex": GrammarSpec("regex", "[0-9/]{2,}", param="guided_regex"),
    "lark": GrammarSpec("grammar", 'start: "1" "2" | "(" start ")"', param="guided_grammar"),
    "gbnf": GrammarSpec("grammar", 'root ::= "1" root | "2"', param="guided_grammar"),
    "tag": GrammarSpec(
        "structural_tag", json.dumps({"format": {"type": "regex", "pattern": "12|34"}}), param="response_format"
    ),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("budget", [3, None])
def test_thoughts_before_an_answer_of_a_form(opened: bool, answer: str, budget: int | None) -> None:
    ids, _ = kit("hermes", True)
    spec = behind(ANSWERS[answer], reasoning_parser("qwen3"), opened, budget)
    before = [] if opened else [ids["<think>"]]
    assert fits("hermes", spec, [*before, *b"aaaa"], whole=False) == (budget is None)
    for thought in (b"", b"{a}"):
        for lines in (b"", b"\n", b"\n\n"):
            assert fits("hermes", spec, [*before, *thought, ids["</think>"], *lines, *b"12"])
        assert not fits("hermes", spec, [*before, *thought, ids["</think>"], *b"\n\n\n"], whole=False)
        assert not fits("hermes", spec, [*before, *thought, ids["</think>"], *b"ab"], whole=False)
    assert fits("hermes", spec, b"12") == (not opened)


def test_thoughts_that_open_and_close_with_words() -> None:
    """Where the answer may begin with the same words, both are followed until they part."""
    name = "granite"
    thoughts = reasoning_parser("granite")
    opening, closing = thoughts.openings[0].encode(), thoughts.closings[0].encode()
    for source in ("[0-9]+", "Here is [a-z]+|[0-9]+"):
        spec = behind(GrammarSpec("regex", source), thoughts, False, 3)
        assert fits(name, spec, [*opening, *b"aaa", *closing, *b"\n12"])
        assert fits(name, spec, [*opening, *b"a", *closing, *b"12"])
        assert fits(name, spec, [*opening, *b"aHe", *closing[2:], *b"12"])
        assert not fits(name, spec, [*opening, *b"aaaa"], whole=False)
        assert fits(name, spec, b"12")
        assert fits(name, spec, b"Here is it") == ("Here" in source)
        assert not fits(name, spec, b"Here is My", whole=False)
    spec = budget_grammar(thoughts, False, 3, Terms({}, [EOS]))
    assert not fits(name, spec, [*opening, *b"aaaa"], whole=False)
    assert fits(name, spec, [*opening, *b"aaa", *closing, *b"aaaa"])
    assert fits(name, spec, b"Here is more.")


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_budget_before_an_answer_or_calls(answer: str) -> None:
    ids, _ = kit("hermes", True)
    choice = Choice("auto", ("now",))
    for opened in (True, False):
        spec = answer_or_calls(tool_parser("hermes"), SCHEMAS, choice, ANSWERS[answer], Terms(ids, [EOS]))
        spec = behind(spec, reasoning_parser("qwen3"), opened, 3)
        before = [] if opened else [ids["<think>"]]
        assert not fits("hermes", spec, [*before, *b"aaaa"], whole=False)
        call = [ids["<tool_call>"], *b'\n{"name": "now", "arguments": {}}\n', ids["</tool_call>"]]
        for rest in (call, list(b"12")):
            assert fits("hermes", spec, [*before, *b"aaa", ids["</think>"], 10, *rest])


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_budget_before_an_answer_in_a_channel(answer: str) -> None:
    ids, _ = kit("openai", True)
    channel, message, end, start = (ids[f"<|{name}|>"] for name in ("channel", "message", "end", "start"))
    think = [channel, *b"analysis", message]
    spec = answer_in_channel(tool_parser("openai"), ANSWERS[answer], Terms(ids, [EOS]).within(3))
    final = [channel, *b"final", message, *b"12"]
    assert not fits("openai", spec, [*think, *b"aaaa"], whole=False)
    assert fits("openai", spec, [*think, *b"aaa", end, start, *b"assistant", *final])
    assert fits("openai", spec, final)
    assert not fits("openai", spec, [channel, *b"final", message, *b"ab"], whole=False)
