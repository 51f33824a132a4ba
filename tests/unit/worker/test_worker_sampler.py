"""Each rule, and mixtures of them, against a plain reference: the kept sets exactly, the draws by chi-square."""

import numpy as np
import pytest
import torch
from worker_reference import Bench, adjusted, chi_square_fits, distribution
from worker_toy import greedy

from octavo.base.plan import NONE_LEFT
from octavo.base.wire import Sampling
from octavo.kernels.ref.narrow import keep_among_best
from octavo.kernels.ref.search import best_until, ordered
from octavo.worker.columns import Columns, pack
from octavo.worker.sample import step as rule_steps

VOCAB = 40
DRAWS = 3000
PROMPT, OUTPUT = [3, 5, 5, 9, 21], [7, 5, 7, 11, 12]


def logits_of(seed, vocab=VOCAB):
    return np.random.default_rng(seed).normal(0, 2, vocab).astype(np.float32)


RULES = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "hot": {"temperature": 1.9},
    "top_k": {"top_k": 5},
    "top_k_one": {"top_k": 1},
    "top_p": {"top_p": 0.7},
    "top_p_small": {"top_p": 0.01},
    "top_k_top_p": {"top_k": 12, "top_p": 0.8, "temperature": 1.2},
    "min_p": {"min_p": 0.1},
    "typical_p": {"typical_p": 0.6},
    "typical_after_top_k": {"typical_p": 0.5, "top_k": 20},
    "repetition": {"repetition_penalty": 1.6},
    "repetition_below_one": {"repetition_penalty": 0.7},
    "frequency": {"frequency_penalty": 1.1},
    "presence": {"presence_penalty": -1.5},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.7},
    "bias": {"logit_bias": ((4, 3.0), (8, -100.0))},
    "allowed": {"allowed_token_ids": (1, 5, 9, 30)},
    "bad_words": {"bad_words": ((2,), (11, 12, 4), (12, 6), (10, 8), (9, 21, 7, 5, 7, 11, 12, 3))},
    "min_tokens": {"min_tokens": 6, "eos_token_ids": (2,), "stop_token_ids": (8, 9)},
    "min_tokens_ruled": {"min_tokens": 6, "eos_token_ids": (2,), "stop_token_ids": (8,), "eos_ruled": True},
    "min_tokens_over": {"min_tokens": 5, "eos_token_ids": (2,), "stop_token_ids": (8, 9)},
    "all": {
        "temperature": 1.3,
        "top_k": 25,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical_p": 0.9,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "logit_bias": ((1, 1.0),),
        "bad_words": ((12, 3),),
        "min_tokens": 9,
        "eos_token_ids": (0,),
    },
}


@pytest.mark.parametrize("name", RULES)
def test_draws_follow_the_reference(name):
    sampling = {"seed": 0, "max_tokens": 8, **RULES[name]}
    samplings = [Sampling(**{**sampling, "seed": seed * 7919 + 1}) for seed in range(DRAWS)]
    logits = logits_of(len(name))
    tokens, _ = Bench(VOCAB, DRAWS).draw(logits, [PROMPT + OUTPUT] * DRAWS, [len(PROMPT)] * DRAWS, samplings)
    expected = distribution(logits, PROMPT + OUTPUT, len(PROMPT), samplings[0])
    assert chi_square_fits(np.bincount(tokens, minlength=VOCAB), expected)


def random_sampling(rng, vocab):
    def maybe(value, otherwise):
        return value if rng.random() < 0.5 else otherwise

    def ids(count):
        return tuple(int(token) for token in rng.integers(0, vocab, count))

    return Sampling(
        seed=int(rng.integers(0, 1 << 62)),
        max_tokens=8,
        temperature=float(rng.choice([0.0, 0.5, 1.0, 1.7])),
        top_p=float(maybe(rng.uniform(0.05, 0.99), 1.0)),
        top_k=int(maybe(rng.integers(1, vocab + 20), 0)),
        min_p=float(maybe(rng.uniform(0, 0.2), 0.0)),
        typical_p=float(maybe(rng.uniform(0.2, 0.99), 1.0)),
        presence_penalty=float(maybe(rng.uniform(-2, 2), 0.0)),
        frequency_penalty=float(maybe(rng.uniform(-2, 2), 0.0)),
        repetition_penalty=float(maybe(rng.uniform(0.5, 2), 1.0)),
        logit_bias=maybe(tuple((token, float(rng.uniform(-5, 5))) for token in set(ids(4))), ()),
        bad_words=maybe((ids(1), ids(2), ids(3), ids(2), ids(9)), ()),
        allowed_token_ids=maybe(ids(30), ()),
        min_tokens=int(rng.integers(0, 12)),
        eos_token_ids=ids(1),
        stop_token_ids=ids(2),
    )


@pytest.mark.parametrize("seed", range(12))
def test_mixed_batches_keep_what_the_reference_keeps(seed, monkeypatch):
    if seed % 2:  # three rows at once or so, and every row alone where the vocabulary is large
        monkeypatch.setattr(rule_steps, "SLAB", 200)
    rng = np.random.default_rng(seed)
    vocab, count = int(rng.choice([17, 64, 1500])), 24
    samplings = [random_sampling(rng, vocab) for _ in range(count)]
    lines = [rng.integers(0, vocab, int(rng.integers(1, 40))).tolist() for _ in range(count)]
    # Bad words that bite: the end of the row's own output and one more token.
    prompts = [int(rng.integers(1, len(line) + 1)) for line in lines]
    for row in range(0, count, 3):
        tail = tuple(lines[row][prompts[row] :][-2:])
        samplings[row] = _changed(samplings[row], bad_words=((*tail, 1), (*tail, 2), (2,)))
    logits = rng.normal(0, 2, (count, vocab)).astype(np.float32)
    tokens, after = Bench(vocab, count).draw(logits, lines, prompts, samplings)
    for row, sampling in enumerate(samplings):
        expected = distribution(logits[row], lines[row], prompts[row], sampling)
        if sampling.temperature == 0:
            moved = adjusted(logits[row], lines[row], prompts[row], sampling)
            assert moved[tokens[row]] == pytest.approx(moved.max(), abs=1e-4)
            continue
        got = np.exp(after[row].astype(np.float64) - after[row].max())
        np.testing.assert_allclose(got / got.sum(), expected, atol=2e-4)
        assert expected[tokens[row]] > 0


def _changed(sampling, **changes):
    return Sampling(**{**{name: getattr(sampling, name) for name in sampling.__struct_fields__}, **changes})


def test_rows_do_not_see_each_other():
    """Byte-equal logits after the rules, and equal tokens, whoever else is in the batch."""
    rng = np.random.default_rng(2)
    samplings = [random_sampling(rng, VOCAB) for _ in range(16)]
    lines = [rng.integers(0, VOCAB, 12).tolist() for _ in range(16)]
    logits = rng.normal(0, 2, (16, VOCAB)).astype(np.float32)
    tokens, after = Bench(VOCAB, 16).draw(logits, lines, [6] * 16, samplings)
    for row in range(16):
        alone, own = Bench(VOCAB, 1).draw(logits[row], [lines[row]], [6], [samplings[row]])
        assert alone[0] == tokens[row]
        assert own[0].tobytes() == after[row].tobytes()


def test_ids_outside_the_vocabulary_touch_no_neighbour():
    wild = (VOCAB, VOCAB + 1, 2 * VOCAB, -1, (1 << 31) - 1)
    sampling = greedy(
        logit_bias=tuple((token, 50.0) for token in wild),
        bad_words=tuple((token,) for token in wild),
        allowed_token_ids=(*range(VOCAB), *wild),
        min_tokens=3,
        stop_token_ids=wild,
    )
    logits = logits_of(1)
    tokens, after = Bench(VOCAB, 3).draw(logits, [[1], [2], [3]], [1] * 3, [greedy(), sampling, greedy()])
    assert tokens.tolist() == [int(logits.argmax())] * 3
    np.testing.assert_array_equal(after, np.stack([logits] * 3))


def test_greedy_takes_the_lowest_of_equals_and_ignores_filters():
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[[9, 4, 30]] = 2.0
    samplings = [greedy(), greedy(top_p=0.1, top_k=1, min_p=0.9, typical_p=0.1), greedy(temperature=1e-9)]
    tokens, _ = Bench(VOCAB, 3).draw(logits, [[1]] * 3, [1] * 3, samplings)
    assert tokens.tolist() == [4, 4, 4]


@pytest.mark.parametrize("rule", [{"typical_p": 1e-300}, {"top_p": 1e-320}, {"min_p": 1e-320}])
def test_a_number_too_small_for_a_float_leaves_one_token_at_least(rule):
    tokens, _ = Bench(5000, 1).draw(logits_of(3, 5000), [[1]], [1], [greedy(temperature=1.0, **rule)])
    assert tokens[0] >= 0
    keys = torch.randn(2, 50)
    assert best_until(keys, keys.softmax(-1), torch.zeros(2)).sum(-1).tolist() == [1, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rules_that_leave_nothing_are_told_from_bad_logits(temperature):
    """The second row's logits are no numbers, the third has no rule."""
    rules = {"allowed_token_ids": (2, 8), "min_tokens": 4, "eos_token_ids": (2, 8), "temperature": temperature}
    samplings = [greedy(**rules), greedy(**rules), greedy(temperature=temperature)]
    logits = np.stack([logits_of(3), np.full(VOCAB, np.nan, dtype=np.float32), logits_of(3)])
    tokens, _ = Bench(VOCAB, 3).draw(logits, [[1]] * 3, [1] * 3, samplings)
    assert tokens.tolist()[:2] == [NONE_LEFT, -1]
    assert tokens[2] >= 0


def test_a_tiny_temperature_is_right():
    logits = logits_of(3)
    tokens, _ = Bench(VOCAB, 1).draw(logits, [[1]], [1], [greedy(temperature=2e-5)])
    assert tokens[0] == logits.argmax()


def test_the_number_drawn_depends_on_seed_and_position_only():
    bench, logits = Bench(VOCAB, 8), logits_of(4)
    hot = [Sampling(seed=5, max_tokens=8, temperature=1.5)] * 8
    lines = [[1] * length for length in (1, 2, 3, 4, 5, 6, 7, 8)]
    tokens, _ = bench.draw(logits, lines, [1] * 8, hot)
    assert len(set(tokens.tolist())) > 1
    reversed_tokens, _ = bench.draw(logits, lines[::-1], [1] * 8, hot)
    assert reversed_tokens.tolist() == tokens.tolist()[::-1]


def test_a_row_is_wiped_before_its_next_request():
    bench, logits = Bench(VOCAB, 2), logits_of(6)
    everything = _changed(
        Sampling(seed=3, max_tokens=8), **{**RULES["all"], **RULES["allowed"], "logprobs": 5, "temperature": 0.0}
    )
    bench.draw(logits, [PROMPT + OUTPUT] * 2, [5] * 2, [everything] * 2)
    tokens, after = bench.draw(logits, [[1], [2]], [1, 1], [greedy(), greedy(seed=9, temperature=1.0)])
    np.testing.assert_array_equal(after, np.stack([logits] * 2))
    assert tokens[0] == logits.argmax()
    assert bench.table.tokens[0, 1:].abs().sum() == 0


@pytest.mark.parametrize("vocab", [50, 5000])
@pytest.mark.parametrize("seed", range(3))
def test_wide_and_narrow_cuts_agree(seed, vocab):
    """The search over all tokens and the look at the likeliest keep the same sets."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, vocab, generator=generator) * 3
    top_k = torch.tensor([0, 7, 40, 0, 1, 20], dtype=torch.int32)
    top_p = torch.tensor([0.9, 0.5, 1.0, 0.3, 0.9, 0.99])
    narrow = logits.clone()
    assert keep_among_best(narrow, top_k, top_p, 1024, check=True)
    wide = logits.clone()
    k = torch.where(top_k > 0, top_k.float(), float("inf"))
    wide.masked_fill_(~best_until(wide, torch.ones_like(wide), k), -float("inf"))
    probs = wide.softmax(-1)
    wide.masked_fill_(~best_until(probs, probs, top_p.masked_fill(top_p == 1.0, float("inf"))), -float("inf"))
    assert torch.equal(narrow, wide)


def test_a_flat_distribution_goes_the_wide_way():
    """top_p over more tokens than are looked at first."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 0.01, 6000).astype(np.float32)
    sampling = Sampling(seed=1, max_tokens=4, top_p=0.9)
    _, after = Bench(6000, 1).draw(logits, [[1]], [1], [sampling])
    expected = distribution(logits, [1], 1, sampling)
    assert abs(int(np.isfinite(after[0]).sum()) - int((expected > 0).sum())) <= 1


def test_order_of_floats_survives_as_whole_numbers():
    values = torch.tensor([-float("inf"), -3.5, -1e-40, -0.0, 0.0, 1e-40, 2.0, float("inf")])
    order = ordered(values)
    assert (order[1:] >= order[:-1]).all()
    assert order[3] == order[4]
    assert (order.diff() == 0).sum() == 1


def test_columns_come_back_as_they_were_packed():
    sampling = Sampling(
        seed=(1 << 64) - 5, max_tokens=1, temperature=0.5, top_p=0.25, top_k=1 << 40, min_p=0.125, logprobs=7
    )
    columns = Columns(torch.from_numpy(np.stack([pack(sampling, 17), pack(greedy(seed=3), 2)])))
    assert columns.seed.tolist() == [-5, 3]
    assert columns.temperature.tolist() == [0.5, 0.0]
    assert columns.top_p.tolist() == [0.25, 1.0]
    assert columns.min_p.tolist() == [0.125, 0.0]
    assert columns.top_k.tolist() == [(1 << 31) - 1, 0]
    assert columns.num_prompt.tolist() == [17, 2]
    assert columns.told.tolist() == [7, -1]
    with pytest.raises(AttributeError):
        columns.absent  # noqa: B018
