"""Constraints in random worlds: whatever else happens to a request, its tokens are those it would get alone."""

import json
import time
from random import Random

import numpy as np
import pytest
from grammar_kit import EOS, SCHEMAS, WIDTH, WIRE, bits, json_spec, wait_until

from octavo.base.scores import read
from octavo.base.specs import KVGroup, KVLayout, KVSpec
from octavo.base.wire import EngineRequest, Sampling
from octavo.engine.constrained import ConstrainedSeat
from octavo.engine.core import Core
from octavo.engine.recovery import STEP_FAILED, Recovery
from octavo.engine.rest import Rest
from octavo.grammar import alone
from octavo.grammar.crew import Crew
from octavo.grammar.guide import Guide
from octavo.grammar.spec import RIDER, GrammarSpec, Thoughts, decode_spec, encode_spec
from octavo.sched.limits import Limits
from octavo.sched.scheduler import Scheduler
from octavo.testing.fake_executor import FakeExecutor, fold_model, nearest_allowed

MAX_LEN = 400
LONGEST = 120  # tokens of any request here
SPECS = [
    json_spec(SCHEMAS[0]),
    json_spec(SCHEMAS[1]),
    json_spec(SCHEMAS[2]),
    json_spec(SCHEMAS[0], finish_within_budget=False, min_tokens=5),
    json_spec(SCHEMAS[3], thoughts=Thoughts(("</think>",), "<think>", 4)),
    GrammarSpec("regex", "[a-c]{2,9}", finish_within_budget=False),
    GrammarSpec("choice", json.dumps(["abcabc", "hello", "12name"])),
    GrammarSpec("grammar", 'root ::= "a" root | "b"'),
]


@pytest.fixture(scope="module")
def compiler():
    seat = ConstrainedSeat(WIDTH, MAX_LEN, 64)
    seat.provide(WIRE)
    for spec in SPECS:
        seat._compiler.submit(spec).result(60)
    yield seat._compiler
    seat.shutdown()


@pytest.fixture(scope="module")
def crew(compiler):
    """One with followers, who get every guide but the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.grammar.crew.FEW", 1)
        made = Crew(compiler.setup, compiler.table, size=2)
        made.start()
        wait_until(lambda: all(link.look() or link.backends for link in made._links))
        yield made
        made.close()


def make_core(compiler, crew, random):
    """A small cache, steps that fail, and whatever else there is to choose."""
    windows = random.choice([(None,), (None,), (6,), (None, 9), (5, None, 11)])
    num_blocks = 1 + len(windows) * int(LONGEST / 4 * random.choice([1.3, 1.6, 2.0, 4.0]))
    groups = tuple(KVGroup(KVSpec(1, 8, window), (index,)) for index, window in enumerate(windows))
    layout = KVLayout(groups, 4, num_blocks, 2)
    limits = Limits(
        max_model_len=MAX_LEN,
        max_num_seqs=random.choice([2, 4, 8]),
        max_num_batched_tokens=random.choice([8, 17, 64]),
        scheduling_policy=random.choice(["fcfs", "fair", "priority"]),
        prefix_caching=random.random() < 0.8,
    )
    failing = {random.randrange(1, 200) for _ in range(random.choice([0, 3, 8]))}
    executor = FakeExecutor(WIDTH, fail_steps=failing, max_rows=limits.max_rows)
    executor.start(layout)
    seat = ConstrainedSeat(WIDTH, MAX_LEN, 64)
    seat._compiler = compiler
    seat._crew = random.choice([crew, Crew(compiler.setup, compiler.table)])
    recovery, rest = Recovery(), Rest(executor)
    scheduler = Scheduler(layout, limits, rest.before(recovery.gates))
    return Core(scheduler, executor, random.choice([1, 2, 2, 3]), seat=seat, recovery=recovery, rest=rest)


def request(name, random, policy):
    spec = random.choice([None, None, *SPECS])
    prompt = [random.randrange(2) * 5 + 7 * i for i in range(random.choice([0, 4, 12]))]
    sampling = Sampling(
        seed=random.randrange(3),
        max_tokens=random.choice([3, 8, 14, 26, 40]),
        min_tokens=0 if spec else random.choice([0, 3]),
        eos_token_ids=(EOS,),
        logprobs=random.choice([-1, 0, 2]),
        prompt_logprobs=random.choice([-1, -1, 1]),
    )
    return EngineRequest(
        name,
        prompt + [random.randrange(200) for _ in range(random.randrange(1, 9))],
        sampling,
        priority=random.randrange(3) if policy == "priority" else 0,
        tenant=random.choice(["", "other"]),
        riders={} if spec is None else {RIDER: encode_spec(spec)},
    )


def expected(compiler, wanted):
    """What the request yields by itself, and why it ends; None where its constraint has no room."""
    model, sampling, guide = fold_model(WIDTH), wanted.sampling, None
    if RIDER in wanted.riders:
        spec = decode_spec(wanted.riders[RIDER])
        guide = Guide(compiler.submit(spec).result(), spec, compiler.table, frozenset({EOS}), sampling.max_tokens)
        if spec.finish_within_budget and guide.shortest > sampling.max_tokens:
            return None
    tokens, row = list(wanted.tokens), np.empty(compiler.table.words, dtype=np.int32)
    while True:
        token = model(tokens, len(wanted.tokens), sampling)
        if guide is not None:
            alone.fill(guide, row)
            token = alone.take(guide, nearest_allowed(token, bits(row)))
        tokens.append(token)
        output = tokens[len(wanted.tokens) :]
        if token == EOS and len(output) >= sampling.min_tokens:
            return output, "stop"
        if len(output) == sampling.max_tokens:
            return output, "length"


def disturb(core, random, open_ids):
    dice = random.random()
    if dice < 0.04 and open_ids:
        core.abort([random.choice(open_ids)])
    elif dice < 0.05:
        core.scheduler.forget_prefixes()
    elif dice < 0.055:
        core.rest.sleep(core, 1)
        core.rest.wake()


def live(core, random):
    """Requests come, are aborted, preempted and taken back with failed steps, until all have ended."""
    wanted, tokens, scores, ends = {}, {}, {}, {}
    to_come, patience = random.randrange(8, 20), 10_000
    while len(wanted) < to_come or core.has_work:
        if len(wanted) < to_come and (random.random() < 0.3 or not core.has_work):
            one = request(f"r{len(wanted)}", random, core.scheduler._limits.scheduling_policy)
            wanted[one.id], tokens[one.id], scores[one.id] = one, [], []
            core.add(one)
        disturb(core, random, [id for id in wanted if id not in ends])
        step = core.step()
        if step is None:
            patience -= 1
            assert patience, "nothing moves"
            time.sleep(0.0005)
            continue
        for output in step.each():
            assert output.id not in ends, "an output after the last"
            tokens[output.id] += output.tokens
            scores[output.id] += read(output.logprobs)
            if output.finish is not None:
                ends[output.id] = output
    return {id: (one, tokens[id], scores[id], ends[id]) for id, one in wanted.items()}


@pytest.mark.parametrize("seed", range(24))
def test_no_world_changes_a_token(compiler, crew, seed):
    random = Random(seed)
    core = make_core(compiler, crew, random)
    for wanted, tokens, scores, last in live(core, random).values():
        by_itself = expected(compiler, wanted)
        if by_itself is None:
            assert last.finish in ("error", "abort")
            assert not tokens
        elif last.finish in ("error", "abort"):
            assert last.finish == "abort" or last.error == STEP_FAILED
            assert tokens == by_itself[0][: len(tokens)]
        else:
            assert (tokens, last.finish) == by_itself
        if wanted.sampling.logprobs >= 0:
            assert [score.token for score in scores] == tokens
    assert not core.executor.violations
    assert core.stats.kv_usage == 0.0
    assert core.scheduler.board.rows.num_free == core.scheduler._limits.max_rows
    assert not core._seat._guides
    assert crew._enlisted is not None  # nobody was lost
    assert not crew._here
    assert not any(link.guides for link in crew._links)
