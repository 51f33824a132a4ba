"""Outputs that end by length are whole: over schemas, limits and seeds, with a model that draws at random."""

import itertools
import json
import re

import jsonschema
import numpy as np
import pytest
from grammar_kit import EOS, SCHEMAS, TABLE, THINK_END, bits, compiled, json_spec, text_of, wander
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from octavo.base.errors import UserError
from octavo.grammar import alone
from octavo.grammar.closing import Closer
from octavo.grammar.closings import closings
from octavo.grammar.guide import Guide
from octavo.grammar.spec import GrammarSpec, Thoughts


def sized(kind, low_key, high_key, lows, more, **extra):
    """Schemas of a kind with bounds from `low` to `low + more`."""
    return st.builds(lambda low, by: {"type": kind, low_key: low, high_key: low + by, **extra}, lows, more)


NAMES = st.sampled_from(["a", "bc", "name", "x y", 'q"'])
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-9, 99), st.sampled_from(["ab", "z", ""]))
LEAVES = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": "string"}, {"type": "number"}, {}]),
    sized("string", "minLength", "maxLength", st.integers(0, 4), st.integers(0, 9)),
    sized("integer", "minimum", "maximum", st.integers(-300, 300), st.integers(0, 500)),
    st.builds(lambda low: {"type": "number", "exclusiveMinimum": low}, st.integers(-3, 30)),
    st.sampled_from([{"type": "integer", "multipleOf": 7}, {"type": ["string", "null"]}, {"const": [1, {"a": "b"}]}]),
    st.lists(VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    st.sampled_from(["^[a-c]{2,5}$", "^x+y?$", "[0-9]{3}"]).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.sampled_from(["date", "uuid", "ipv4", "email"]).map(lambda name: {"type": "string", "format": name}),
)


def _object(properties, required, extra):
    schema = {"type": "object", "properties": properties, "required": sorted(set(required) & set(properties))}
    return schema if extra is None else {**schema, "additionalProperties": extra}


def _array(items, low, by, first):
    schema = {"type": "array", "items": items, "minItems": low, "maxItems": low + by}
    return schema if first is None else {**schema, "prefixItems": [first]}


def _nested(inner):
    names = st.lists(NAMES, max_size=4)
    extra = st.one_of(st.none(), st.just(False), inner)
    return st.one_of(
        st.builds(_object, st.dictionaries(NAMES, inner, max_size=4), names, extra),
        st.builds(_array, inner, st.integers(0, 2), st.integers(1, 3), st.one_of(st.none(), inner)),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    )


json_schemas = st.recursive(LEAVES, _nested, max_leaves=8)


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_every_output_parses_and_validates(schema):
    spec = json_spec(schema)
    shared = compiled(spec)
    assert shared.opening is not None
    for limit in (8, 13, 24, 48, 120):
        for seed in range(3):
            tokens = wander(spec, limit, np.random.default_rng([limit, seed]), shared)
            if tokens is None:
                assert len(shared.opening) > limit
                continue
            assert len(tokens) <= limit
            jsonschema.validate(json.loads(text_of(tokens)), schema)


def test_the_shortest_text_just_fits():
    spec = json_spec(SCHEMAS[1])
    shared = compiled(spec)
    least = len(shared.opening)
    assert wander(spec, least - 1, np.random.default_rng(0), shared) is None
    for seed in range(20):
        tokens = wander(spec, least, np.random.default_rng(seed), shared)
        jsonschema.validate(json.loads(text_of(tokens)), SCHEMAS[1])


def test_where_room_is_tight_what_cannot_fit_is_not_drawn():
    """In a string only what closes it; before that, everything."""
    spec = json_spec({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    shared = compiled(spec)
    guide = Guide(shared, spec, TABLE, frozenset({EOS}), len(shared.opening) + 3)
    row = np.zeros(TABLE.words, dtype=np.int32)

    def step(token):
        alone.fill(guide, row)
        assert token in bits(row)
        assert alone.take(guide, token) == token

    for token in [*b"{ ", *TABLE.greedy(b'"a":"')]:
        step(token)
    while not guide.is_tight:
        step(ord("x"))
    alone.fill(guide, row)
    assert all(b'"' in TABLE.tokens[token] for token in bits(row))
    step(TABLE.by_bytes[b'"}'])
    assert guide.is_whole


def test_where_room_is_tight_no_blanks_are_drawn_between_values():
    spec = json_spec({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    shared = compiled(spec)
    guide = Guide(shared, spec, TABLE, frozenset({EOS}), len(shared.opening) + 1)
    row = np.zeros(TABLE.words, dtype=np.int32)
    blank = {token for token, text in enumerate(TABLE.tokens) if text and not text.strip()}
    for token in TABLE.greedy(b'{"a":'):
        alone.fill(guide, row)
        alone.take(guide, token)
    alone.fill(guide, row)
    assert bits(row) & blank
    alone.take(guide, ord(" "))
    assert guide.is_tight
    alone.fill(guide, row)
    assert bits(row)
    assert not bits(row) & blank


@pytest.mark.parametrize(
    ("schema", "said", "one_of"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, b'{"a":12', "}]"),
        ({"type": "array", "items": {"type": "integer"}}, b"[1,2,34", "}]"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 3}, b"[12", "}],"),
        ({"type": "array", "items": {"type": "array"}}, b"[[],[", "}]"),
    ],
)
def test_where_room_is_tight_only_what_goes_on_as_the_way_does_is_drawn(schema, said, one_of):
    """No more digits, no more members."""
    spec = json_spec(schema)
    shared = compiled(spec)
    tokens = TABLE.greedy(said)
    row = np.zeros(TABLE.words, dtype=np.int32)
    for limit in range(len(tokens) + 1, len(tokens) + 40):
        guide = Guide(shared, spec, TABLE, frozenset({EOS}), max(limit, len(shared.opening)))
        if [alone.take(guide, token) for token in tokens] != tokens or not guide.is_tight:
            continue
        alone.fill(guide, row)
        assert bits(row)
        assert all(set(one_of) & set(TABLE.tokens[token].decode()) for token in bits(row))
        return
    raise AssertionError("it was never tight")


LABELS = ["left", "lest", "up", "down", "midway", "upon the hill"]
PEOPLE = [{"name": {"const": "a"}, "age": {"type": "integer"}}, {"name": {"const": "b"}, "sure": {"type": "boolean"}}]
CHOICES = {
    "labels": ({"label": {"enum": LABELS}}, [{"label": label} for label in LABELS]),
    "kinds": ({"k": {"enum": ["xa", 12, None, True, False]}}, [{"k": each} for each in ("xa", 12, None, True, False)]),
    "null": (
        {"a": {"type": ["null", "string"]}, "b": {"type": "boolean"}},
        [{"a": "bc", "b": True}, {"a": None, "b": False}],
    ),
    "dates": ({"d": {"type": "string", "format": "date"}}, [{"d": "2031-12-31"}, {"d": "1999-01-05"}]),
    "numbers": (
        {"n": {"type": "integer", "minimum": 10, "maximum": 99}, "m": {"type": "number"}},
        [{"n": 57, "m": 0.12}],
    ),
}


@pytest.mark.parametrize("kind", CHOICES)
@pytest.mark.parametrize("more", [0, 1, 2, 4, 8])
def test_what_just_fits_is_said(kind, more):
    """A classifier with hardly any room says whatever it wants that fits, not the label that was found first."""
    properties, wishes = CHOICES[kind]
    spec = json_spec({"type": "object", "properties": properties, "required": list(properties)})
    shared = compiled(spec)
    row = np.zeros(TABLE.words, dtype=np.int32)
    for wish in wishes:
        tokens = TABLE.greedy(json.dumps(wish, separators=(",", ":")).encode())
        guide = Guide(shared, spec, TABLE, frozenset({EOS}), max(len(tokens), len(shared.opening)) + more)
        for token in tokens:
            alone.fill(guide, row)
            assert token in bits(row)
            assert alone.take(guide, token) == token
        assert guide.is_whole


@pytest.mark.parametrize("first", [0, 1])
def test_alternatives_of_objects_are_said_where_they_just_fit(first):
    options = [{"type": "object", "properties": each, "required": list(each)} for each in PEOPLE]
    spec = json_spec({"anyOf": [options[first], options[1 - first]]})
    shared = compiled(spec)
    for text in (b'{"name":"a","age":12}', b'{"name":"b","sure":true}', b'{"name":"b","sure":false}'):
        tokens = TABLE.greedy(text)
        guide = Guide(shared, spec, TABLE, frozenset({EOS}), max(len(tokens), len(shared.opening)))
        assert [alone.take(guide, token) for token in tokens] == tokens


def ended_by_itself(spec, shared, rng, most):
    """Tokens of a text that ends where it may, half of the time; None for one that does not come to an end."""
    guide = Guide(shared, spec, TABLE, frozenset({EOS}), most)
    row, out = np.zeros(TABLE.words, dtype=np.int32), []
    while len(out) < most:
        alone.fill(guide, row)
        others = sorted(bits(row) - {EOS})
        if guide.is_whole and (not others or rng.random() < 0.5):
            return out
        out.append(alone.take(guide, int(rng.choice(others))))
    return None


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
@pytest.mark.parametrize("more", [0, 2])
def test_whatever_just_fits_is_left_as_it_is(schema, more):
    """But for blanks, whose text could have been shorter."""
    spec, free = json_spec(schema), json_spec(schema, finish_within_budget=False)
    shared = compiled(spec)
    texts = [ended_by_itself(free, shared, np.random.default_rng(seed), 60) for seed in range(6)]
    row = np.zeros(TABLE.words, dtype=np.int32)
    for tokens in filter(None, texts):
        guide = Guide(shared, spec, TABLE, frozenset({EOS}), max(len(tokens) + more, len(shared.opening)))
        for token in tokens:
            alone.fill(guide, row)
            if token not in bits(row) and not TABLE.tokens[token].strip():
                break
            assert token in bits(row)
            assert alone.take(guide, token) == token


@pytest.mark.parametrize("room", [24, 30, 42, 66])
def test_where_there_is_room_for_much_the_dearer_alternative_is_said(room):
    """A date instead of null, begun in the token that ends the name: its end is found by a longer search only."""
    date = {"anyOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]}
    item = {"properties": {"n": {"type": "integer"}, "d": date}, "required": ["n", "d"], "additionalProperties": False}
    spec = json_spec({"type": "array", "items": {"type": "object", **item}, "minItems": 1})
    said = [*b'[{"n":1,"d', TABLE.by_bytes[b'":"'], *b"2024"]
    guide = Guide(compiled(spec), spec, TABLE, frozenset({EOS}), room + 10)
    row = np.zeros(TABLE.words, dtype=np.int32)
    for token in said:
        alone.fill(guide, row)
        assert alone.take(guide, token) == token


def test_where_room_is_tight_a_start_of_what_comes_is_drawn_only_if_the_rest_fits():
    spec = json_spec({"type": "object", "properties": {"a": {"enum": ["bcab", "c"]}}, "required": ["a"]})
    whole = compiled(spec)
    text, known = b'{"a":"bcab"}', TABLE.by_bytes
    way = TABLE.greedy(text)
    guide = Guide(whole, spec, TABLE, frozenset({EOS}), len(way))
    row = np.zeros(TABLE.words, dtype=np.int32)
    begun = next(place for place in range(len(way)) if TABLE.text(way[place:]).startswith(b"bcab"))
    for token in way[:begun]:
        alone.fill(guide, row)
        assert alone.take(guide, token) == token
    guide._plan = way[begun:]
    alone.fill(guide, row)
    assert known[b"bc"] in bits(row)
    assert known[b"b"] not in bits(row)


def test_a_way_that_never_turns_back():
    """What is forced, a choice that is all there is, and the rest of a known text."""
    schema = {"type": "object", "properties": {"k": {"enum": ["aware", "bored", "north", "noise"]}}, "required": ["k"]}
    shared = compiled(json_spec(schema))
    matcher = shared.grammar.matcher()
    for head, rests in {'{"k":"b': ['ored"}'], '{"k":"no': ['rth"}', 'ise"}']}.items():
        here = matcher.copy()
        assert here.push(TABLE.greedy(head.encode()))
        ways = [TABLE.greedy(rest.encode()) for rest in rests]
        assert shared.closer.follow(here, shared.opening, len(ways[0])) in ways
        assert shared.closer.follow(here, shared.opening, len(ways[0]) - 1) is None


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(schema=json_schemas, limit=st.sampled_from([8, 16, 40, 90]), seed=st.integers(0, 1000))
def test_schemas_made_at_random(schema, limit, seed):
    """What is not refused is kept to. (Formats are notes to a validator, so they are not looked at here.)"""
    try:
        spec = json_spec(schema)
        shared = compiled(spec)
    except UserError:
        return
    if shared.opening is None:  # nothing fits, or nothing was found: the engine refuses
        return
    tokens = wander(spec, limit, np.random.default_rng(seed), shared)
    if tokens is not None:
        jsonschema.validate(json.loads(text_of(tokens)), schema)


def test_without_a_budget_the_output_may_be_cut():
    spec = json_spec(SCHEMAS[1], finish_within_budget=False)
    assert len(wander(spec, 5, np.random.default_rng(0))) == 5


def test_choices_and_regexes_can_have_a_budget():
    for spec in (
        GrammarSpec("choice", json.dumps(["abcabc", "hello", "h"])),
        GrammarSpec("regex", "a{2,40}b"),
        GrammarSpec("grammar", 'start: "(" start ")" | "x"'),
    ):
        for seed in range(20):
            tokens = wander(spec, 7, np.random.default_rng(seed))
            matcher = compiled(spec).grammar.matcher()
            assert matcher.push([token for token in tokens if token != EOS])
            assert matcher.is_accepting


def test_a_closer_finds_what_closes():
    matcher = compiled(json_spec(SCHEMAS[0])).grammar.matcher()
    assert matcher.push(list(b'{"a":[[{"b":"c'))
    end = Closer(TABLE, closings(TABLE)).close(matcher, 8)
    assert end is not None
    assert len(end) <= 8
    assert matcher.closes(end)
    assert json.loads(b'{"a":[[{"b":"c' + TABLE.text(end)) == {"a": [[{"b": "c"}]]}


@pytest.mark.parametrize("value", [[False], [True], [None], {"a": False}, [[0]], [False, 7]], ids=str)
def test_a_constant_is_closed_from_behind_its_first_brackets_and_blanks(value):
    """What a small model does with a constant that it would not say: it lays blanks."""
    shared = compiled(json_spec({"const": value}))
    head = json.dumps(value)[: 1 if isinstance(value, list) else len('{"a":')].encode()
    for blanks in (b"", b" ", b"\n  "):
        matcher = shared.grammar.matcher()
        assert matcher.push(TABLE.greedy(head + blanks))
        way = shared.closer.close(matcher, 12)
        assert way is not None
        assert matcher.closes(way)


def test_no_end_before_min_tokens_unless_nothing_else_is_left():
    row = np.zeros(TABLE.words, dtype=np.int32)
    spec = GrammarSpec("regex", "a{1,6}", min_tokens=4)
    guide = Guide(compiled(spec), spec, TABLE, frozenset({EOS}), 20)
    for number in range(6):
        alone.fill(guide, row)
        assert (EOS in bits(row)) == (number >= 4)
        alone.take(guide, ord("a"))
    alone.fill(guide, row)
    assert bits(row) == {EOS}


@pytest.mark.parametrize("marker", ["</think>", "END:"])
def test_a_constraint_that_begins_behind_a_marker(marker):
    spec = json_spec({"type": "object"}, after=(marker,))
    guide = Guide(compiled(spec), spec, TABLE, frozenset({EOS}), 60)
    row = np.zeros(TABLE.words, dtype=np.int32)
    for byte in b'thoughts {"not json, EN':
        alone.fill(guide, row)
        assert EOS not in bits(row)
        assert alone.take(guide, byte) == byte
    for token in [THINK_END] if marker == "</think>" else list(b"D:"):
        alone.take(guide, token)
    alone.fill(guide, row)
    assert bits(row) <= {token for token, text in enumerate(TABLE.tokens) if text[:1] == b"{"}


@pytest.mark.parametrize("marker", ["</think>", "END:"])
def test_thoughts_are_cut_short_for_the_sake_of_the_answer(marker):
    spec = json_spec({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, after=(marker,))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        guide = Guide(compiled(spec), spec, TABLE, frozenset({EOS}), 30)
        out: list[int] = []
        row = np.zeros(TABLE.words, dtype=np.int32)
        while len(out) < 30 and EOS not in out:
            alone.fill(guide, row)
            out.append(alone.take(guide, int(rng.choice(sorted(bits(row) - {THINK_END})))))
        text = text_of(out)
        assert isinstance(json.loads(text[text.index(marker.encode()) + len(marker) :])["a"], int)


def test_text_behind_a_marker_in_the_same_token_counts():
    spec = json_spec({"type": "object"}, after=("x{",))
    guide = Guide(compiled(spec), spec, TABLE, frozenset({EOS}), 40)
    alone.take(guide, ord("x"))
    alone.take(guide, TABLE.by_bytes[b'{"'])
    assert not guide.is_whole


def test_an_engine_that_gives_up_ends_its_own_request():
    spec = json_spec({})
    shared = compiled(spec)
    guide = Guide(shared, spec, TABLE, frozenset({EOS}), 40)
    guide._matcher.fill = lambda _: False  # type: ignore[method-assign]
    row = np.zeros(TABLE.words, dtype=np.int32)
    alone.fill(guide, row)
    assert bits(row) == {EOS}
    assert guide.failure


FORMS = {
    "json": (json_spec(SCHEMAS[1]), lambda text: jsonschema.validate(json.loads(text), SCHEMAS[1])),
    "regex": (GrammarSpec("regex", "[a-c]{2,40}x"), lambda text: re.fullmatch(rb"[a-c]{2,40}x", text)[0]),
    "choice": (GrammarSpec("choice", '["abcabc", "hello"]'), [b"abcabc", b"hello"].index),
    "lark": (GrammarSpec("grammar", 'start: "(" start ")" | "x"'), lambda text: re.fullmatch(rb"\(*x\)*", text)[0]),
    "gbnf": (GrammarSpec("grammar", 'root ::= "a" root | "b"'), lambda text: re.fullmatch(rb"a*b", text)[0]),
}


@pytest.mark.parametrize("marks", [("", "</think>"), ("<think>", "</think>"), ("Hm", "END:"), ("(a", "END:")])
@pytest.mark.parametrize("form", FORMS)
def test_thoughts_have_their_bound_and_every_form_behind_them_is_whole(form, marks):
    """Whatever the limit, the bound, and whether thoughts are opened by the prompt, by a token or by words."""
    spec, holds = FORMS[form]
    opening, closing = marks
    shared, thought = compiled(spec), 0
    for number, (most, limit) in enumerate(itertools.product((0, 3, 12, None), (24, 40, 90))):
        for seed in range(4):
            rng = np.random.default_rng([number, seed])
            asked = replace(spec, thoughts=Thoughts((closing,), opening, most), finish_within_budget=True)
            tokens = wander(asked, limit, rng, shared)
            assert tokens is not None
            text = text_of(tokens)
            begun = not opening or text.startswith(opening.encode())
            _, mark, after = text.partition(closing.encode())
            assert begun == bool(mark), text
            holds(after.lstrip(b"\n") if mark else text)
            if mark and most is not None:
                said = next(n for n in range(limit + 1) if closing.encode() in text_of(tokens[:n]))
                marks_tokens = 1 + bool(opening) if closing == "</think>" else len(opening) + len(closing)
                assert said <= most + marks_tokens
            thought += bool(mark)
    assert thought


@pytest.mark.parametrize(
    "source",
    [
        'start: "a" start? "b"',
        'start: "(" start ")" | "x"',
        'start: "(" start ")" | "[" start "]" | "x"',
    ],
)
@pytest.mark.parametrize("limit", [40, 100, 301])
def test_what_has_nested_all_the_way_is_closed_all_the_way(source, limit):
    whole, spec = compiled(GrammarSpec("grammar", source)), GrammarSpec("grammar", source)
    opens = [TABLE.by_bytes[text] for text in (b"a", b"(", b"[")]
    dice = np.random.default_rng(limit)
    guide = Guide(whole, spec, TABLE, frozenset({EOS}), limit)
    row, out = np.zeros(TABLE.words, dtype=np.int32), []
    while len(out) < limit and EOS not in out:
        alone.fill(guide, row)
        may = bits(row)
        out.append(alone.take(guide, int(dice.choice([token for token in opens if token in may] or sorted(may)))))
    assert guide.is_whole
    assert len(out) > limit // 2
