"""Where there is room for the way to the end and for nothing longer, few tokens that may come are tried before one is
drawn: what is left stands, and nothing else is gone."""

import numpy as np
import pytest
from grammar_kit import EOS, SCHEMAS, TABLE, bits, compiled, json_spec

from octavo.bench.structured.cost import schema_of
from octavo.grammar import alone, trials
from octavo.grammar import guide as guide_module
from octavo.grammar.guide import Guide
from octavo.grammar.trials import few, others

KINDS = [
    {"type": "object", "properties": {"k": {"enum": ["red", "green", "blue"]}}, "required": ["k"]},
    {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]}, "minItems": 2},
    schema_of(2),
    {"type": "array", "items": {"enum": ["xab", "y12", "xy", "ya"]}, "minItems": 3},
    SCHEMAS[10],
]


def led(shared, spec, limit, said):
    """A guide that has taken these tokens."""
    guide, row = Guide(shared, spec, TABLE, frozenset({EOS}), limit), np.zeros(TABLE.words, dtype=np.int32)
    for token in said:
        alone.fill(guide, row)
        assert alone.take(guide, token) == token
    alone.fill(guide, row)
    return guide, row


@pytest.mark.parametrize("kind", range(len(KINDS)))
@pytest.mark.parametrize("more", [0, 3])
def test_what_is_left_stands_and_what_is_gone_would_not(kind, more, monkeypatch):
    spec = json_spec(KINDS[kind])
    shared = compiled(spec)
    limit, rng, said, seen = len(shared.opening) + more, np.random.default_rng(kind), [], 0
    while len(said) < limit:
        guide, row = led(shared, spec, limit, said)
        left = bits(row)
        if not left or left == {EOS}:
            break
        if guide.is_tight and len(left) <= trials.FEW:
            monkeypatch.setattr(guide_module, "FEW", 0)
            before = bits(led(shared, spec, limit, said)[1])
            for token in before if len(before) <= trials.FEW else ():
                stands = alone.take(led(shared, spec, limit, said)[0], token)
                assert (stands == token) == (token in left), TABLE.tokens[token]
                seen += 1
            monkeypatch.undo()
        said.append(alone.take(guide, int(rng.choice(sorted(left)))))
    assert seen


def test_a_token_that_was_tried_is_not_looked_for_again(monkeypatch):
    spec = json_spec({"type": "array", "items": {"enum": ["xab", "y12"]}, "minItems": 1})
    shared = compiled(spec)
    tokens = TABLE.greedy(b'["y12"]' if b"xab" in TABLE.text(shared.opening) else b'["xab"]')
    assert len(tokens) == len(shared.opening)
    guide = led(shared, spec, len(tokens), tokens[:2])[0]
    monkeypatch.setattr(Guide, "search", lambda *_: pytest.fail("it was looked for"))
    monkeypatch.setattr(Guide, "_way", lambda *_: pytest.fail("a way was looked for"))
    row = np.zeros(TABLE.words, dtype=np.int32)
    for token in tokens[2:]:
        alone.fill(guide, row)
        assert alone.take(guide, token) == token
    assert guide.is_whole


def test_no_token_is_tried_where_masks_are_dear(monkeypatch):
    spec = json_spec(KINDS[0])
    shared = compiled(spec)
    assert shared.closer.is_quick
    said, limit = TABLE.greedy(b'{"k":"'), len(shared.opening)
    usual = bits(led(shared, spec, limit, said)[1])
    monkeypatch.setattr(shared.closer, "is_quick", False)
    guide, row = led(shared, spec, limit, said)
    assert usual < bits(row)
    assert alone.take(guide, min(bits(row) - usual)) in usual


def test_whether_masks_are_dear_is_settled_with_the_constraint(monkeypatch):
    spec = json_spec({"type": "object", "properties": {"k": {"enum": ["a", "dear one"]}}, "required": ["k"]})
    monkeypatch.setattr("octavo.grammar.workshop.QUICK_S", -1.0)
    assert not compiled(spec).closer.is_quick


def test_few_tokens_of_a_mask():
    row = np.zeros(TABLE.words, dtype=np.int32)
    assert others(row, 31) == 0
    TABLE.allow(row, [31])
    assert others(row, 31) == 0
    assert row[0] == -(1 << 31)
    TABLE.allow(row, [0, 77])
    assert others(row, 31) == 2
    assert few(row) == [0, 31, 77]
    TABLE.allow(row, range(40))
    assert few(row) == []
