"""Many guides in one step against the same guides one by one: the same masks, the same tokens, over random walks."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
from grammar_kit import EOS, SCHEMAS, TABLE, THINK_END, WIDTH, WIRE, bits, compiled, json_spec, text_of

from octavo.base.errors import UserError
from octavo.grammar import alone
from octavo.grammar.crew import Crew
from octavo.grammar.frames import Setup
from octavo.grammar.guide import BROKEN, Guide
from octavo.grammar.registry import BACKENDS
from octavo.grammar.spec import GrammarSpec, Thoughts

ENGINES = [name for name in BACKENDS.names() if find_spec(name) is not None]
FORMS = [
    *(json_spec(schema) for schema in SCHEMAS),
    *(json_spec(schema, min_tokens=11) for schema in SCHEMAS[:3]),
    *(json_spec(schema, finish_within_budget=False) for schema in SCHEMAS[:3]),
    *(json_spec(SCHEMAS[1], after=(marker,)) for marker in ("</think>", "END:")),
    json_spec(SCHEMAS[0], after=("</think>",), optional=True, min_tokens=5, finish_within_budget=False),
    *(json_spec(SCHEMAS[1], thoughts=Thoughts(("</think>",), opening, 9)) for opening in ("", "<think>", "Hm")),
    json_spec(SCHEMAS[0], thoughts=Thoughts(("END:",), "", 5)),
    json_spec(
        SCHEMAS[0],
        thoughts=Thoughts(("</think>",), "<think>", 3),
        after=("END:",),
        optional=True,
        finish_within_budget=False,
    ),
    GrammarSpec("regex", "[a-c]{2,40}x?", thoughts=Thoughts(("</think>",), "ab", 4)),
    GrammarSpec("choice", json.dumps(["abcabc", "hello", "h", "12name"]), thoughts=Thoughts(("</think>",))),
    GrammarSpec("regex", "[a-c]{2,40}x?", finish_within_budget=False, min_tokens=6),
    GrammarSpec("regex", "(ab|hello|[0-9]+,)*end"),
    GrammarSpec("choice", json.dumps(["abcabc", "hello", "h", "12name"])),
    GrammarSpec("grammar", 'start: "(" start ")" | "x"'),
    GrammarSpec("grammar", 'root ::= "a" root "b" | "hello"', finish_within_budget=False),
]


@pytest.fixture(scope="module")
def shared():
    """Constraints that some engine has compiled."""
    found = []
    for name in ENGINES:
        engine = BACKENDS.get(name)(TABLE)
        for spec in FORMS:
            try:
                whole = compiled(spec, engine=engine)
            except UserError:
                continue
            found.append((whole, spec))
    return found


def pairs(shared, limit):
    """Two guides for each constraint that the limit has room for."""
    for whole, spec in shared:
        both = [Guide(whole, spec, TABLE, frozenset({EOS}), limit) for _ in range(2)]
        if not spec.finish_within_budget or (both[0].shortest is not None and both[0].shortest <= limit):
            yield spec, *both


def draw(row, free, dice):
    """A token of the mask. One that is free seldom comes to its marker by itself."""
    may = bits(row)
    if free and THINK_END in may and dice.random() < 0.05:
        return THINK_END
    plain = sorted(may - {EOS}) if dice.random() < 0.9 else sorted(may)
    return int(dice.choice(plain or sorted(may)))


@pytest.fixture
def together():
    """As a crew without followers has it: memory for masks is used again."""
    made = Crew(Setup(WIRE, WIDTH, 1 << 28), TABLE)
    yield made
    made.close()


@pytest.mark.parametrize("limit", [6, 14, 40, 120])
@pytest.mark.parametrize("seed", range(3))
def test_many_at_once_are_as_one_by_one(shared, together, limit, seed):
    rows = list(pairs(shared, limit))
    dice = [np.random.default_rng([limit, seed, index]) for index in range(len(rows))]
    outs = [[] for _ in rows]
    live = list(range(len(rows)))
    single_row = np.zeros(TABLE.words, dtype=np.int32)
    while live:
        many, single = [rows[index][1] for index in live], [rows[index][2] for index in live]
        masks = together.fill(many)
        for guide, row in zip(single, masks):
            alone.fill(guide, single_row)
            assert bits(single_row) == bits(row)
        tokens = [draw(row, rows[index][1].matcher is None, dice[index]) for index, row in zip(live, masks)]
        standing = together.take(many, tokens)
        assert standing == [alone.take(guide, token) for guide, token in zip(single, tokens)]
        for index, token in zip(live, standing):
            assert rows[index][1].failure is None
            outs[index].append(token)
        live = [index for index in live if len(outs[index]) < limit and outs[index][-1] != EOS]
    together.fill([])
    for (spec, guide, _), out in zip(rows, outs):
        if spec.finish_within_budget:
            assert guide.is_whole, (spec, text_of(out))


def test_a_guide_whose_token_does_not_fit_fails_alone(together):
    spec = json_spec(SCHEMAS[0], finish_within_budget=False)
    whole = compiled(spec)
    guides = [Guide(whole, spec, TABLE, frozenset({EOS}), 40) for _ in range(40)]
    together.fill(guides)
    tokens = [ord("{")] * 40
    tokens[7] = ord("x")
    assert together.take(guides, tokens) == tokens
    masks = together.fill(guides)
    assert [place for place, guide in enumerate(guides) if guide.failure] == [7]
    assert guides[7].failure == BROKEN
    assert bits(masks[7]) == {EOS}
    assert ord('"') in bits(masks[6])


def test_a_way_goes_on_within_a_character():
    whole = compiled(json_spec({"type": "string"}))
    for begun in (b"\xf3", b"\xf0", b"\xf4", b"\xe0", b"\xed", b"\xc3", b"\xf3\xa4", b"\xf3\xa4\x99"):
        matcher = whole.grammar.matcher()
        assert matcher.push(list(b'"' + begun))
        way = whole.closer.close(matcher, 8, 0)
        assert way is not None
        assert matcher.closes(way)
