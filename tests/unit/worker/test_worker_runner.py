"""The fixed step over a toy model: what a naive host model gives, in any batch, chunk, depth and after failures."""

import numpy as np
import pytest
import torch
from worker_toy import POISON, Driver, NewBlocks, ToyModel, greedy, layout, make_runner, random_prompt

from octavo.base.errors import EngineError
from octavo.base.plan import NONE_LEFT
from octavo.base.scores import read


def naive_greedy(model, tokens, count):
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(model.naive(tokens).argmax()))
    return tokens[-count:]


@pytest.mark.parametrize("groups", [1, 3])
def test_greedy_equals_the_naive_model(groups):
    model, rng = ToyModel(), np.random.default_rng(0)
    kv = layout(groups, num_blocks=6 * groups * 16 + 1)
    driver = Driver(make_runner(model, kv=kv), groups)
    prompts = [random_prompt(rng) for _ in range(5)]
    out = driver.generate(prompts, [greedy()] * 5, 6)
    assert out == [naive_greedy(model, prompt, 6) for prompt in prompts]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8])
def test_prompt_in_chunks(chunk):
    model, rng = ToyModel(), np.random.default_rng(chunk)
    driver = Driver(make_runner(model, kv=layout(num_blocks=128)))
    prompt = random_prompt(rng, 11, 11)
    added = [driver.added(0, prompt)]
    for start in range(0, 11, chunk):
        size = min(chunk, 11 - start)
        last = start + size == 11
        out = driver.launch(added, [0], [size], [start], [0] if last else []).result()
        assert len(out.tokens) == int(last)
        added = []
    assert out.tokens == naive_greedy(model, prompt, 1)


def test_a_token_still_in_flight_is_found_on_the_device():
    """Steps are launched one ahead: nothing of a step is read before the next is launched."""
    model, rng = ToyModel(), np.random.default_rng(3)
    driver = Driver(make_runner(model, kv=layout(num_blocks=128)))
    prompts = [random_prompt(rng, 3, 9) for _ in range(3)]
    starts = [len(prompt) for prompt in prompts]
    added = [driver.added(row, prompt) for row, prompt in enumerate(prompts)]
    pending = [driver.launch(added, [0, 1, 2], starts, [0, 0, 0], [0, 1, 2])]
    for step in range(5):
        pending.append(driver.launch([], [2, 0, 1], [1, 1, 1], [starts[i] + step for i in (2, 0, 1)], [0, 1, 2]))
    results = [each.result() for each in pending]
    lines = [[results[0].tokens[row]] for row in range(3)]
    for result in results[1:]:
        for row, token in zip((2, 0, 1), result.tokens):
            lines[row].append(token)
    assert lines == [naive_greedy(model, prompt, 6) for prompt in prompts]
    assert [result.step for result in results] == [1, 2, 3, 4, 5, 6]


def test_blocks_that_arrive_later_and_a_prefix_that_is_shared():
    model = ToyModel()
    driver = Driver(make_runner(model, kv=layout(num_blocks=128)))
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    driver.launch([driver.added(0, prompt)], [0], [8], [0], [0]).result()
    late = driver.added(1, [*prompt, 9], computed=8)
    late = type(late)(1, "late", late.tokens, 9, 8, greedy(), [driver.blocks(0, 2)[0]])
    new = NewBlocks([1], [0], [2], [100])
    out = driver.launch([late], [1], [1], [8], [0], new_blocks=[new]).result()
    assert out.tokens == naive_greedy(model, [*prompt, 9], 1)


def test_resumed_row_carries_its_output():
    model = ToyModel()
    driver = Driver(make_runner(model, kv=layout(num_blocks=128)))
    prompt = [3, 1, 4, 1, 5]
    sampling = greedy(seed=7, temperature=0.9, frequency_penalty=1.0, repetition_penalty=1.3, min_tokens=2)
    straight = driver.generate([prompt], [sampling], 8)[0]
    back = [*prompt, *straight[:4]]
    added = [driver.added(2, back, num_prompt=5, sampling=sampling)]
    resumed, starts, num = list(straight[:4]), 0, len(back)
    for _ in range(4):
        out = driver.launch(added, [2], [num], [starts], [0]).result()
        resumed += out.tokens
        starts, num, added = starts + num, 1, []
    assert resumed == straight


SAMPLINGS = [
    greedy(seed=11, temperature=0.8),
    greedy(),
    greedy(seed=12, temperature=1.3, top_p=0.8, top_k=9, logprobs=3),
    greedy(seed=13, temperature=0.7, min_p=0.05, repetition_penalty=1.2, presence_penalty=0.4),
    greedy(seed=14, temperature=1.0, typical_p=0.7, bad_words=((4,), (5, 6)), logit_bias=((3, 2.0),)),
]


def test_tokens_do_not_depend_on_the_batch():
    rng = np.random.default_rng(5)
    prompts = [random_prompt(rng) for _ in SAMPLINGS]
    together = Driver(make_runner(ToyModel(), kv=layout(num_blocks=128))).generate(prompts, SAMPLINGS, 8)
    alone = Driver(make_runner(ToyModel(), kv=layout(num_blocks=128))).generate(prompts, SAMPLINGS, 8, together=False)
    assert together == alone
    other = [each if each.temperature == 0 else greedy(**{**_as_dict(each), "seed": 99}) for each in SAMPLINGS]
    changed = Driver(make_runner(ToyModel(), kv=layout(num_blocks=128))).generate(prompts, other, 8)
    assert changed[1] == together[1]
    assert changed[0] != together[0]


def _as_dict(sampling):
    return {name: getattr(sampling, name) for name in sampling.__struct_fields__}


def test_a_row_that_is_not_finite_leaves_its_neighbours_alone():
    prompts = [[1, 2, 3], [4, POISON, 5], [6, 7]]
    samplings = [greedy(seed=1, temperature=0.9, top_p=0.9, logprobs=2)] * 3
    whole = Driver(make_runner(ToyModel(), kv=layout(num_blocks=128))).generate(prompts, samplings, 5)
    clean = [[1, 2, 3], [4, 12, 5], [6, 7]]
    other = Driver(make_runner(ToyModel(), kv=layout(num_blocks=128))).generate(clean, samplings, 5)
    assert whole[1] == [-1] * 5
    assert whole[0] == other[0]
    assert whole[2] == other[2]


RULES = {
    "allowed": {"allowed_token_ids": (3, 4)},
    "bad word": {"bad_words": ((20,),)},
    "bias": {"logit_bias": ((20, -100.0), (3, 100.0))},
    "least": {"min_tokens": 4, "eos_token_ids": (20,)},
    "penalties": {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "presence_penalty": -1.0},
    "temperature": {"temperature": 0.5, "seed": 3},
    "min_p": {"temperature": 1.0, "min_p": 0.3, "seed": 3},
    "top_k": {"temperature": 1.0, "top_k": 3, "seed": 3},
    "top_p": {"temperature": 1.0, "top_p": 0.5, "seed": 3},
    "typical": {"temperature": 1.0, "typical_p": 0.5, "seed": 3},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("spoil", [float("nan"), -float("nan"), float("inf")])
def test_a_rule_cannot_hide_a_row_that_is_not_finite(rule, spoil):
    class OneSpoiled(ToyModel):
        def logits(self, hidden):
            out = super().logits(hidden)
            out[:, 20] = spoil
            return out

    driver = Driver(make_runner(OneSpoiled(), kv=layout(num_blocks=128)))
    assert driver.generate([[1, 2]], [greedy(**RULES[rule])], 1) == [[-1]]


def test_forbidding_every_token_ends_that_row_only():
    driver = Driver(make_runner(ToyModel(), kv=layout(num_blocks=128)))
    samplings = [greedy(allowed_token_ids=(3,), bad_words=((3,),)), greedy()]
    out = driver.generate([[1, 2], [1, 2]], samplings, 1)
    assert out[0] == [NONE_LEFT]
    assert out[1] == naive_greedy(ToyModel(), [1, 2], 1)


@pytest.mark.parametrize("token", [-1, 50, 1 << 40, -(1 << 40)])
def test_a_token_from_outside_the_vocabulary_spoils_its_row_only(token):
    driver = Driver(make_runner(ToyModel(), kv=layout(num_blocks=128)))
    out = driver.generate([[1, token, 2], [1, 2]], [greedy(repetition_penalty=1.1)] * 2, 2)
    assert out[0] == [-1, -1]
    alone = Driver(make_runner(ToyModel(), kv=layout(num_blocks=128)))
    assert out[1] == alone.generate([[1, 2]], [greedy(repetition_penalty=1.1)], 2)[0]
    # The row is sound again for the next request.
    assert driver.generate([[1, 2]], [greedy()], 1) == [naive_greedy(ToyModel(), [1, 2], 1)]


def test_a_failed_step_is_told_by_its_result_and_the_next_one_works():
    model = ToyModel()
    driver = Driver(make_runner(model, kv=layout(num_blocks=128)))
    added = [driver.added(0, [1, 2, 3])]
    driver.launch(added, [0], [3], [0], [0]).result()
    model.fail_next = True
    failed = driver.launch([driver.added(1, [5, 6])], [1], [2], [0], [0])
    assert failed.done()
    with pytest.raises(EngineError, match=r"step 2 failed: RuntimeError: out of memory, for example$"):
        failed.result()
    first = naive_greedy(model, [1, 2, 3], 2)
    out = driver.launch([], [0], [1], [3], [0], dropped=[1]).result()
    assert out.tokens == [first[1]]


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [6]},
        {"rows": [-1]},
        {"starts": [59], "num": [9]},
        {"starts": [-1]},
        {"num": [0]},
        {"num": [65]},
        {"sampled": [1]},
        {"starts": [0, 1]},
    ],
)
def test_a_plan_out_of_bounds_is_refused(change):
    driver = Driver(make_runner(ToyModel(), kv=layout(num_blocks=128)))
    driver.launch([driver.added(0, [1, 2, 3])], [0], [3], [0], [0]).result()
    plan = {"rows": [0], "num": [1], "starts": [3], "sampled": [0], **change}
    with pytest.raises(EngineError):
        driver.launch(**plan).result()
    assert len(driver.launch([], [0], [1], [3], [0]).result().tokens) == 1


def test_forward_twice_or_sample_alone_is_refused():
    runner = make_runner(ToyModel(), kv=layout(num_blocks=128))
    with pytest.raises(EngineError):
        runner.sample({})
    driver = Driver(runner)
    plan_row = driver.added(0, [1])
    driver.launch([plan_row], [0], [1], [0], [0]).result()


def test_logprobs_equal_torch_and_are_the_models_own():
    model = ToyModel()
    driver = Driver(make_runner(model, kv=layout(num_blocks=128)))
    prompt = [2, 7, 1]
    sampling = greedy(seed=3, temperature=0.5, top_k=5, logprobs=4, logit_bias=((9, 5.0),))
    samplings = [sampling, greedy(), greedy(logprobs=0)]
    added = [driver.added(row, prompt, sampling=each) for row, each in enumerate(samplings)]
    out = driver.launch(added, [0, 1, 2], [3, 3, 3], [0, 0, 0], [0, 1, 2]).result()
    expected = model.naive(prompt).log_softmax(-1)
    assert out.logprobs[1] == b""
    (line,), (short,) = read(out.logprobs[0]), read(out.logprobs[2])
    assert line.token == out.tokens[0]
    assert line.logprob == pytest.approx(float(expected[line.token]), abs=1e-5)
    assert line.rank == 1 + int((expected > expected[line.token]).sum())
    best = expected.topk(4)
    assert line.ids == best.indices.tolist()
    assert line.logprobs == pytest.approx(best.values.tolist(), abs=1e-5)
    assert short.ids == []
    assert short.rank == 1


@pytest.mark.parametrize("chunk", [2, 3, 9])
def test_prompt_logprobs_in_chunks_and_slabs(chunk):
    model = ToyModel()
    runner = make_runner(model, kv=layout(num_blocks=128))
    runner._prompt_logprobs._slab = 100  # two positions
    driver = Driver(runner)
    prompt = [2, 7, 1, 8, 2, 8, 1, 8, 3]
    added = [driver.added(0, prompt, sampling=greedy(prompt_logprobs=2)), driver.added(1, [5, 5, 5])]
    lines = []
    for start in range(0, 9, chunk):
        size = min(chunk, 9 - start)
        rows, num, starts = ([1, 0], [3, size], [0, start]) if start == 0 else ([0], [size], [start])
        out = driver.launch(added, rows, num, starts, [0] if start == 0 else []).result()
        added = []
        entry = 1 if start == 0 else 0
        assert set(out.prompt_logprobs) <= {entry}
        lines += read(out.prompt_logprobs.get(entry, b""))
    assert [line.token for line in lines] == prompt[1:]
    for place, line in enumerate(lines, start=1):
        expected = model.naive(prompt[:place]).log_softmax(-1)
        assert line.logprob == pytest.approx(float(expected[line.token]), abs=1e-5)
        assert line.ids == expected.topk(2).indices.tolist()
        assert line.rank == 1 + int((expected > expected[line.token]).sum())


def test_who_asks_for_prompt_logprobs_changes_no_neighbours_token():
    """The CPU's model gives its logits in one buffer, written over by the next call."""

    class OneBuffer(ToyModel):
        def logits(self, hidden):
            out = super().logits(hidden)
            self.buffer = getattr(self, "buffer", torch.empty(64, out.shape[1]))
            self.buffer[: len(out)] = out
            return self.buffer[: len(out)]

    samplings = [greedy(seed=3, temperature=1.5), greedy(seed=4, temperature=1.5, top_k=9), greedy(prompt_logprobs=2)]
    prompts = [[1, 2, 3], [6, 7], [2, 7, 1, 8, 2, 8]]
    out = Driver(make_runner(OneBuffer(), kv=layout(num_blocks=128))).generate(prompts, samplings, 4)
    assert out == Driver(make_runner(ToyModel(), kv=layout(num_blocks=128))).generate(prompts, samplings, 4)


def test_a_reused_row_reports_only_what_its_new_request_asks():
    runner = make_runner(ToyModel(), kv=layout(num_blocks=128))
    driver = Driver(runner)
    asks = greedy(logprobs=3, prompt_logprobs=2, allowed_token_ids=(1, 2, 3))
    out = driver.launch([driver.added(0, [1, 2, 3], sampling=asks)], [0], [3], [0], [0]).result()
    assert out.logprobs
    assert out.prompt_logprobs
    masks = runner._sampler._rules[0]._masks
    assert list(masks) == [0]
    out = driver.launch([driver.added(0, [4, 5])], [0], [2], [0], [0], dropped=[0]).result()
    assert (out.logprobs, out.prompt_logprobs, masks) == ([], {}, {})
    assert out.tokens == naive_greedy(ToyModel(), [4, 5], 1)


def test_a_dropped_row_frees_its_mask():
    runner = make_runner(ToyModel(), kv=layout(num_blocks=128))
    driver = Driver(runner)
    driver.launch([driver.added(0, [1], sampling=greedy(allowed_token_ids=(1,)))], [0], [1], [0], [0]).result()
    assert driver.launch(dropped=[0, 0, 5]).result().tokens == []
    assert runner._sampler._rules[0]._masks == {}
