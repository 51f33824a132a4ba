"""Guides that other processes follow: the masks and tokens that they would have here, whatever becomes of those."""

import os
import signal

import numpy as np
import pytest
from grammar_kit import EOS, SCHEMAS, TABLE, WIDTH, WIRE, bits, compiled, json_spec, wait_until
from msgspec.structs import replace

from octavo.grammar import alone, away
from octavo.grammar.away import Away
from octavo.grammar.crew import Crew, crew_size
from octavo.grammar.frames import Setup
from octavo.grammar.guide import BROKEN, Guide
from octavo.grammar.spec import GrammarSpec, Thoughts

LIMIT = 40
ENDS = frozenset({EOS})
SPECS = [
    json_spec(SCHEMAS[0]),
    json_spec(SCHEMAS[1]),
    json_spec(SCHEMAS[2], finish_within_budget=False, min_tokens=7),
    json_spec(SCHEMAS[3], thoughts=Thoughts(("</think>",), "<think>", 4)),
    json_spec(SCHEMAS[6]),
    GrammarSpec("regex", "[a-c]{2,40}x?"),
    GrammarSpec("grammar", 'start: "(" start ")" | "x"'),
]


@pytest.fixture(scope="module")
def recipes():
    return [compiled(spec) for spec in SPECS]


@pytest.fixture
def crew(monkeypatch):
    monkeypatch.setattr("octavo.grammar.crew.FEW", 2)
    made = Crew(Setup(WIRE, WIDTH, 1 << 28), TABLE, size=3)
    made.start()
    assert not made.is_complete
    wait_until(lambda: made.is_complete)
    yield made
    made.close()
    assert made._enlisted is None


class Walk:
    """One request: who follows it, and a guide of its own that says what is right."""

    def __init__(self, crew, recipes, index, seed, taken=()):
        spec = SPECS[index]
        self.truth = Guide(recipes[index], spec, TABLE, ENDS, LIMIT)
        first = Guide(recipes[index], spec, TABLE, ENDS, LIMIT)
        for token in taken:
            alone.take(self.truth, token)
            alone.take(first, token)
        self.guide = crew.add(first, recipes[index], spec, ENDS, LIMIT, taken)
        self.out = list(taken)
        self.dice = np.random.default_rng([index, seed])
        wait_until(lambda: crew.has_begun(self.guide))

    def draw(self, row):
        may = bits(row)
        plain = sorted(may - ENDS) if self.dice.random() < 0.9 else sorted(may)
        return int(self.dice.choice(plain or sorted(may)))

    @property
    def ended(self):
        return len(self.out) >= LIMIT or EOS in self.out


def step(crew, walks):
    """One step of all; gives those that go on."""
    guides = [walk.guide for walk in walks]
    masks, row = crew.fill(guides), np.zeros(TABLE.words, dtype=np.int32)
    for walk, mask in zip(walks, masks):
        alone.fill(walk.truth, row)
        assert bits(mask) == bits(row)
    tokens = [walk.draw(mask) for walk, mask in zip(walks, masks)]
    standing = crew.take(guides, tokens)
    assert standing == [alone.take(walk.truth, token) for walk, token in zip(walks, tokens)]
    for walk, token in zip(walks, standing):
        assert walk.guide.failure is None
        walk.out.append(token)
        if walk.ended:
            crew.remove(walk.guide)
    return [walk for walk in walks if not walk.ended]


def begin(crew, recipes, count, seed):
    walks = [Walk(crew, recipes, at % len(SPECS), [seed, at]) for at in range(count)]
    return sorted(walks, key=lambda walk: crew.rank(walk.guide))


@pytest.mark.parametrize("seed", range(3))
def test_who_is_away_has_the_masks_and_tokens_it_would_have_here(crew, recipes, seed):
    walks = begin(crew, recipes, 14, seed)
    assert sum(isinstance(walk.guide, Away) for walk in walks) == 12
    assert len({walk.guide.link for walk in walks if isinstance(walk.guide, Away)}) == 3
    steps = 0
    while walks:
        walks = step(crew, walks)
        steps += 1
        if steps % 5 == 0 and steps < 40:  # others come, between the rest
            walks.insert(len(walks) // 2, Walk(crew, recipes, steps % len(SPECS), [seed, steps, 1]))
        if steps % 7 == 0:  # rows are not in one order for ever
            walks = walks[::-1]
    assert crew._starts == 1  # nobody was lost
    assert not crew._here
    assert not any(link.guides for link in crew._links)


@pytest.mark.parametrize("seed", range(4))
def test_some_sit_out_steps(crew, recipes, seed):
    """As those whose token was exchanged do: their masks are their own all the same when they are back."""
    walks, dice = begin(crew, recipes, 7, [seed, 9]), np.random.default_rng(seed)
    while walks:
        here = [walk for walk in walks if dice.random() < 0.4] or walks
        going = step(crew, here)
        walks = [walk for walk in walks if walk in going or walk not in here]
        if dice.random() < 0.2:
            crew.fill([walk.guide for walk in walks])  # a step that failed
    assert crew._starts == 1  # nobody was lost


def test_who_sits_a_step_out_has_filled_its_masks_before_their_memory_is_used_again(crew, recipes):
    walks = begin(crew, recipes, 8, 0)
    step(crew, walks)
    assert all(link._owed is not None for link in crew._links)
    few = [walk for walk in walks if crew.rank(walk.guide) < 1]
    masks = crew.fill([walk.guide for walk in few])
    assert all(link._owed is None for link in crew._links)
    crew.take([walk.guide for walk in few], [walk.draw(mask) for walk, mask in zip(few, masks)])
    assert [link._owed is None for link in crew._links] == [False, True, True]


def test_masks_are_filled_again_for_a_step_that_is_done_again(crew, recipes):
    walks = begin(crew, recipes, 8, 0)
    guides = [walk.guide for walk in walks]
    first = crew.fill(guides).copy()
    assert (crew.fill(guides) == first).all()
    assert (crew.fill(guides[2:5]) == first[2:5]).all()
    assert (crew.fill(guides[::-1]) == first[::-1]).all()


@pytest.mark.parametrize("when", ["fill", "take", "stopped"])
@pytest.mark.parametrize("who", ["first", "other"])
def test_lost_followers_leave_their_guides_here(crew, recipes, monkeypatch, when, who):
    monkeypatch.setattr(away, "ANSWER_S", 0.3)
    walks = begin(crew, recipes, 12, when == "fill")
    for _ in range(6):
        walks = step(crew, walks)
    pid = crew._enlisted.process.pid if who == "first" else _child_of(crew._enlisted.process.pid)
    if when == "fill":
        _end(pid)
        walks = step(crew, walks)
    else:
        masks = crew.fill([walk.guide for walk in walks])
        os.kill(pid, signal.SIGSTOP) if when == "stopped" else _end(pid)
        tokens = [walk.draw(mask) for walk, mask in zip(walks, masks)]
        standing = crew.take([walk.guide for walk in walks], tokens)
        assert standing == [alone.take(walk.truth, token) for walk, token in zip(walks, tokens)]
        for walk, token in zip(walks, standing):
            walk.out.append(token)
    assert crew._enlisted is None
    walks = [walk for walk in walks if not walk.ended]
    while walks:
        walks = step(crew, walks)


def test_one_that_takes_no_orders_is_lost(crew, recipes, monkeypatch):
    """It has stopped, and its socket is full."""
    walks = begin(crew, recipes, 8, 0)
    pid = crew._enlisted.process.pid
    for link in crew._links:
        link._stream.settimeout(0.2)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("octavo.grammar.crew.OWN", 1 << 20)
    for _ in range(2000):
        guide = crew.add(
            Guide(recipes[1], SPECS[1], TABLE, ENDS, LIMIT), recipes[1], SPECS[1], ENDS, LIMIT, [65] * 2000
        )
        crew.remove(guide)
        if crew._enlisted is None or crew._enlisted.process.pid != pid:
            break
    assert crew._enlisted is None or crew._enlisted.process.pid != pid
    while walks:
        walks = step(crew, walks)


def test_lost_followers_are_started_anew_for_those_who_come(crew, recipes):
    for _ in range(2):
        pid = crew._enlisted.process.pid
        walks = begin(crew, recipes, 4, 0)
        _end(pid)
        for _ in range(3):
            walks = step(crew, walks)
        Walk(crew, recipes, 0, 9)
        assert crew._enlisted.process.pid != pid
        wait_until(lambda: all(link.look() or link.backends for link in crew._links))
    _end(crew._enlisted.process.pid)
    step(crew, begin(crew, recipes, 4, 1))
    assert crew._enlisted is None  # three were enough


def test_what_fails_away_fails_alone(crew, recipes):
    walks = begin(crew, recipes, 9, 0)
    guides = [walk.guide for walk in walks]
    place = next(place for place, guide in enumerate(guides) if isinstance(guide, Away))
    masks = crew.fill(guides)
    tokens = [min(bits(mask)) for mask in masks]
    tokens[place] = next(token for token in range(33, 127) if token not in bits(masks[place]))
    crew.take(guides, tokens)
    crew.fill(guides)
    assert [at for at, guide in enumerate(guides) if guide.failure] == [place]
    assert guides[place].failure == BROKEN


def test_a_guide_that_has_said_something_already_goes_on(crew, recipes):
    walks = begin(crew, recipes, 9, 0)
    for _ in range(4):
        walks = step(crew, walks)
    walk = next(walk for walk in walks if isinstance(walk.guide, Away))
    again = Walk(crew, recipes, SPECS.index(walk.guide._make()._spec), 5, walk.out)
    assert isinstance(again.guide, Away)
    while not again.ended:
        step(crew, [again])


def test_who_leaves_before_it_was_made_leaves_nothing(crew, recipes):
    begin(crew, recipes, 3, 0)
    for _ in range(5):
        spec = SPECS[1]
        guide = Guide(recipes[1], spec, TABLE, ENDS, LIMIT)
        crew.remove(crew.add(guide, recipes[1], spec, ENDS, LIMIT, []))
    walks = begin(crew, recipes, 7, 1)
    while walks:
        walks = step(crew, walks)


def test_a_guide_that_a_follower_is_slow_to_make_stays_here(crew, recipes, monkeypatch):
    begin(crew, recipes, 3, 0)
    monkeypatch.setattr("octavo.grammar.crew.BEGIN_S", -1.0)
    walks = begin(crew, recipes, 6, 1)
    assert sum(isinstance(walk.guide, Away) and walk.guide.here is not None for walk in walks) > 1
    while walks:
        walks = step(crew, walks)
    assert crew._starts == 1  # nobody was lost


def test_a_guide_that_a_follower_cannot_make_stays_here(crew, recipes):
    begin(crew, recipes, 3, 0)
    strange = replace(recipes[1], recipe=replace(recipes[1].recipe, form=replace(recipes[1].recipe.form, text="{")))
    guide = crew.add(Guide(recipes[1], SPECS[1], TABLE, ENDS, LIMIT), strange, SPECS[1], ENDS, LIMIT, [])
    guide._make = lambda: Guide(recipes[1], SPECS[1], TABLE, ENDS, LIMIT)
    wait_until(lambda: crew.has_begun(guide))
    assert guide.here is not None
    assert not guide.begun


def test_a_crew_is_complete_when_nobody_is_to_come(crew):
    assert crew.is_complete
    crew._enlisted.process.kill()
    wait_until(lambda: not crew.is_complete)
    assert Crew(Setup(WIRE, WIDTH, 1 << 28), TABLE).is_complete


def test_followers_are_for_cores_to_spare():
    assert [crew_size(cores) for cores in (1, 2, 3, 4, 8, 16, 128)] == [0, 0, 0, 1, 2, 5, 6]


def _end(pid):
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _state(pid) in (None, "Z"))


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(") ")[2].split()[0]
    except OSError:
        return None


def _child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return int(file.read().split()[0])
