"""A small vocabulary, constraints over it, and a sampler that knows nothing: any token the mask allows."""

import json
import time
from functools import partial

import numpy as np
from msgspec.structs import replace

from octavo.base.wire import Vocabulary
from octavo.grammar import alone
from octavo.grammar.closing import example
from octavo.grammar.compiled import Recipe, build
from octavo.grammar.forms import check_spec
from octavo.grammar.guide import Guide
from octavo.grammar.llguidance import LLGuidance
from octavo.grammar.spec import GrammarSpec
from octavo.grammar.vocabulary import VocabularyTable
from octavo.grammar.workshop import look_over

EOS, THINK_END = 256, 257
WIDTH = 300
_WORDS = [b'{"', b'":', b'",', b'"}', b"[]", b"{}", b"}}", b"]]", b"[[", b"null", b"true", b"false", b"  ", b"\n\n"]
_WORDS += [b"hello", b"name", b"age", b"12", b"0.", b'":"', b'[{"', b", ", b": ", b'"}]}', b"ab", b"abc", b"bc"]
THINK = 258 + len(_WORDS)
WIRE = Vocabulary(
    [*(bytes([i]) for i in range(256)), b"<|eos|>", b"</think>", *_WORDS, b"<think>"], [EOS, THINK_END, THINK], [EOS]
)
TABLE = VocabularyTable(WIRE, WIDTH)
ENGINE = LLGuidance(TABLE)

SCHEMAS = [
    {"type": "object"},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 2},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "kind": {"enum": ["red", "green"]},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "o1": {"type": "string"},
            "o2": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"$ref": "#/$defs/t"}}},
            "r": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"},
        },
        "required": ["r"],
        "$defs": {
            "t": {
                "type": "object",
                "properties": {
                    "l": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]},
                    "v": {"type": "integer", "minimum": 3, "maximum": 9},
                },
                "required": ["l", "v"],
            }
        },
    },
    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    {"type": "integer"},
    {"type": "number", "minimum": 1.5},
    {"type": "string", "format": "date-time"},
    {"enum": ["apple", "banana", 1, None, {"a": [1]}]},
    {"type": "array", "minItems": 2, "items": {"type": "object", "required": ["i"], "properties": {"i": {"const": 7}}}},
    {},
    {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": "a"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
            {"type": "object", "properties": {"k": {"const": "b"}, "w": {"type": "boolean"}}, "required": ["k", "w"]},
        ]
    },
    {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string"}}, "required": ["b"]},
        ]
    },
]


def json_spec(schema, **options):
    return GrammarSpec("json_schema", json.dumps(schema), **options)


def compiled(spec, table=TABLE, engine=ENGINE):
    form = check_spec(spec, example=partial(example, engine, table))
    grammar = engine.compile(form)
    opening, known = look_over(table, grammar.matcher(), form)
    return build(Recipe(type(engine).__name__.lower(), replace(form, hints=()), known, opening), engine, table)


def bits(row, width=WIDTH):
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:width]).tolist())


def mask(matcher, table=TABLE):
    row = np.zeros(table.words, dtype=np.int32)
    assert matcher.fill(row)
    return bits(row, table.width)


def wander(spec, limit, rng, shared=None):
    """Tokens of a model that draws evenly from what may come; None if the shortest text does not fit."""
    shared = shared or compiled(spec)
    guide = Guide(shared, spec, TABLE, frozenset({EOS}), limit)
    if spec.finish_within_budget and guide.shortest > limit:
        return None
    row, out = np.zeros(TABLE.words, dtype=np.int32), []
    while len(out) < limit and EOS not in out:
        alone.fill(guide, row)
        token = alone.take(guide, int(rng.choice(sorted(bits(row)))))
        assert guide.failure is None
        out.append(token)
    return out


def parted(tokens):
    """Thoughts in tokens, None without any, and the text behind them without the ends of lines between."""
    if THINK_END not in tokens:
        return None, text_of(tokens)
    place = tokens.index(THINK_END)
    return tokens[:place], text_of(tokens[place + 1 :]).lstrip(b"\n")


def text_of(tokens):
    return TABLE.text([token for token in tokens if token != EOS])


def wait_until(condition, seconds=60):
    """Until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
