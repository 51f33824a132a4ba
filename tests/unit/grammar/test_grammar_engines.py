"""The contract of grammar engines, over every entry of the registry: masks against an oracle of the language."""

import itertools
import json
from importlib.util import find_spec

import numpy as np
import pytest
from grammar_kit import EOS, TABLE, WIDTH, bits, compiled, json_spec, mask

from octavo.base.errors import ConfigError
from octavo.grammar.base import Form, Refused
from octavo.grammar.forms import check_spec
from octavo.grammar.registry import BACKENDS, choices
from octavo.grammar.spec import GrammarSpec


@pytest.fixture(scope="module", params=[*BACKENDS.names(), *(f"{name} brief" for name in BACKENDS.names())])
def engine(request):
    name, _, brief = request.param.partition(" ")
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    return BACKENDS.get(name)(TABLE, brief=bool(brief))


LANGUAGES = [
    (Form("choice", json.dumps(["abc", "abd", "hello", "h"])), {"abc", "abd", "hello", "h"}),
    (
        Form("regex", "[ab]{1,3}c?"),
        {"".join(p) + c for n in (1, 2, 3) for p in itertools.product("ab", repeat=n) for c in ("", "c")},
    ),
    (
        Form("json_schema", '{"enum":["ab",12,null,{"a":[true]}]}', any_whitespace=False),
        {'"ab"', "12", "null", '{"a":[true]}'},
    ),
]


@pytest.mark.parametrize(("form", "language"), LANGUAGES)
def test_masks_are_those_of_the_language(engine, form, language):
    """In every state that can be reached: a token is allowed exactly if some text of the language goes on so."""
    texts = {text.encode() for text in language}
    grammar = engine.compile(form)
    seen, todo = set(), [(b"", grammar.matcher())]
    while todo:
        said, matcher = todo.pop()
        if said in seen:
            continue
        seen.add(said)
        may = {
            t
            for t, word in enumerate(TABLE.tokens)
            if word and t not in TABLE.special and any(x.startswith(said + word) for x in texts)
        }
        found = mask(matcher) - set(TABLE.special)
        rest = [text[len(said) :] for text in texts if text.startswith(said)]
        if len({text[:1] for text in rest}) == 1:  # an engine may insist on one way to cut what is forced
            assert found <= may, said
            assert bool(found) == bool(may), said
        else:
            assert found == may, said
        assert matcher.is_accepting == (said in texts)
        assert matcher.is_terminated == (said in texts and not may)
        for token in range(0, WIDTH, 7):
            assert matcher.copy().push([token]) == (token in may), (said, token)
        for token in may:
            there = matcher.copy()
            assert there.accept(token)
            there.rewind(1)
            assert mask(there) - set(TABLE.special) == found
            assert there.accept(token)
            todo.append((said + TABLE.tokens[token], there))
    assert texts <= seen


def test_a_refused_token_changes_nothing(engine):
    matcher = engine.compile(LANGUAGES[0][0]).matcher()
    before = mask(matcher)
    assert not matcher.accept(ord("z"))
    assert not matcher.push([ord("a"), ord("z")])
    assert not matcher.accept(EOS) or matcher.is_accepting
    assert mask(matcher) == before


def test_copies_go_their_own_ways(engine):
    grammar = engine.compile(LANGUAGES[0][0])
    first, second = grammar.matcher(), grammar.matcher()
    assert first.push(list(b"hello"))
    assert second.push(list(b"ab"))
    third = second.copy()
    assert third.accept(ord("d"))
    assert (first.is_accepting, second.is_accepting, third.is_accepting) == (True, False, True)
    assert grammar.num_bytes > 0


def test_masks_end_with_the_vocabulary(engine):
    """Padding of the logits is never allowed, whatever the constraint."""
    row = np.full(TABLE.words, -1, dtype=np.int32)
    matcher = engine.compile(Form("regex", "(.|\\n)*")).matcher()
    assert matcher.fill(row)
    assert not mask(matcher) & set(range(len(TABLE.tokens) - TABLE.tokens.count(b""), WIDTH))


def test_a_mask_ends_with_the_vocabulary(engine):
    """Where all may come as well: who reads a mask looks its tokens up."""
    matcher = engine.compile(Form("regex", "(.|\n)*")).matcher()
    row = np.zeros(TABLE.words, dtype=np.int32)
    assert matcher.fill(row)
    assert max(bits(row, 32 * TABLE.words)) < WIDTH
    assert compiled(json_spec({"type": "object", "minProperties": 1}), engine=engine).opening is not None


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"not": {"type": "string"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"type": "integer"}}, "contains"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "if"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "string", "format": "of-my-own"}, "format"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(engine, schema, word):
    form = check_spec(json_spec(schema))
    reason = engine.refusal(form)
    if reason is None:
        with pytest.raises(Refused) as caught:
            engine.compile(form)
        reason = caught.value.message
    assert word in reason or "whitespace" in reason


@pytest.mark.skipif(find_spec("xgrammar") is None, reason="the extra is not installed")
def test_the_keywords_that_xgrammar_is_trusted_with_are_enforced():
    engine = BACKENDS.get("xgrammar")(TABLE)
    cases = [
        ({"type": "object", "propertyNames": {"pattern": "^a+$"}}, ['{"a":1}', "{}"], ['{"b":1}']),
        ({"type": "object", "minProperties": 1, "maxProperties": 2}, ['{"a":1}'], ["{}", '{"a":1,"b":1,"c":1}']),
        (
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
            ["[1]"],
            ["[]", "[1,2,3]", '["a"]'],
        ),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"'], ['"a"', '"abcd"']),
        ({"anyOf": [{"type": "null"}, {"const": "x"}]}, ["null", '"x"'], ['"y"', "1"]),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/b"}},
                "required": ["a"],
                "additionalProperties": False,
                "$defs": {"b": {"type": "boolean"}},
            },
            ['{"a":true}'],
            ["{}", '{"a":1}', '{"a":true,"b":1}'],
        ),
    ]
    for schema, good, bad in cases:
        form = check_spec(json_spec(schema, backend="xgrammar"))
        assert engine.refusal(form) is None, schema
        grammar = engine.compile(form)
        for text in good + bad:
            matcher = grammar.matcher()
            fits = matcher.push(list(text.encode())) and matcher.is_accepting
            assert fits == (text in good), (schema, text)


def test_names():
    assert choices("auto")[0] == "llguidance"
    assert choices("guidance") == ["llguidance"]
    assert choices("xgrammar:no-fallback") == ["xgrammar"]
    assert choices("outlines") == choices("auto")
    with pytest.raises(ConfigError):
        choices("llguidence")


def test_structural_tags_leave_free_text_free_and_hold_what_they_hold():
    engine = BACKENDS.get("llguidance")(TABLE)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    old = {"structures": [{"begin": "<tool>", "schema": schema, "end": "</tool>"}], "triggers": ["<to"]}
    new = {
        "format": {
            "type": "triggered_tags",
            "triggers": ["</think>"],
            "tags": [{"begin": "</think>x", "content": {"type": "json_schema", "json_schema": schema}, "end": ";"}],
            "at_least_one": True,
        }
    }
    sequence = {
        "format": {
            "type": "sequence",
            "elements": [
                {"type": "any_text"},
                {"type": "const_string", "value": "#"},
                {
                    "type": "or",
                    "elements": [
                        {"type": "regex", "pattern": "[0-9]+/a"},
                        {"type": "grammar", "grammar": 'start: "yes" | "no"'},
                    ],
                },
            ],
        }
    }

    def fits(tag, tokens):
        matcher = engine.compile(check_spec(GrammarSpec("structural_tag", json.dumps(tag)))).matcher()
        return matcher.push(tokens) and matcher.is_accepting

    for text, good in [
        (b"hi", True),
        (b'a <tool>{"a":1}</tool> b', True),
        (b"<tool>x</tool>", False),
        (b"<top>", False),
        (b"<tool>{}</tool>", False),
    ]:
        assert fits(old, list(text)) == good, text
    assert fits(new, [ord("a"), 257, *b'x{"a":1};'])
    assert not fits(new, list(b"a"))
    assert not fits(new, [257, *b"y"])
    assert fits(sequence, list(b"some text #12/a"))
    assert fits(sequence, list(b"#yes"))
    assert not fits(sequence, list(b"#maybe"))
