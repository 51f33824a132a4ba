"""Every family against transformers: same greedy tokens, log-probabilities within 1e-4, however the work is cut."""

import pytest

from octavo.testing.parity import (
    Chunk,
    PagedModel,
    assert_close,
    prompt_tokens,
    reference_generate,
    reference_logprobs,
)
from octavo.testing.tiny import CASES, tiny

pytestmark = pytest.mark.filterwarnings("ignore")
names = pytest.mark.parametrize("name", list(CASES))


@names
def test_whole_prompt(name):
    model = tiny(name)
    tokens = prompt_tokens(31)
    paged = PagedModel(model)
    assert_close(paged.prefill(paged.sequence(tokens)), reference_logprobs(model, tokens), name)


@names
def test_far_past_windows_and_original_length(name):
    """75 tokens: behind every window of the cases and beyond every original rope length."""
    model = tiny(name)
    tokens = prompt_tokens(75, seed=3)
    theirs = reference_logprobs(model, tokens)
    paged = PagedModel(model)
    assert_close(paged.prefill(paged.sequence(tokens)), theirs, "whole")
    assert_close(paged.prefill(paged.sequence(tokens), chunk=13), theirs, "in chunks")


@names
def test_chunks_of_every_size(name):
    model = tiny(name)
    tokens = prompt_tokens(24, seed=1)
    theirs = reference_logprobs(model, tokens)
    paged = PagedModel(model)
    for chunk in range(1, len(tokens)):
        sequence = paged.sequence(tokens)
        assert_close(paged.prefill(sequence, chunk), theirs, f"{name} in chunks of {chunk}")
        paged.drop(sequence)


@names
def test_greedy_generation_across_every_edge(name):
    """26 + 12 tokens: generation crosses the original length of 32 and slides the windows along."""
    model = tiny(name)
    prompt = prompt_tokens(26, seed=2)
    tokens, theirs = reference_generate(model, prompt, 12)
    paged = PagedModel(model)
    ours, logprobs = paged.generate(paged.sequence(prompt), 12, chunk=9)
    assert ours == tokens
    assert_close(logprobs, theirs, name)


@names
def test_after_a_prefix_hit(name):
    model = tiny(name)
    shared = prompt_tokens(16, seed=4)  # no further: blocks behind the donor's window are gone
    paged = PagedModel(model)
    donor = paged.sequence(shared)
    paged.prefill(donor)
    for seed, length in ((5, 9), (6, 30)):
        tokens = shared + prompt_tokens(length, seed=seed)
        sequence = paged.share(donor, tokens)
        cached = sequence.computed
        assert cached == 16 or paged.arch.rope_salt(len(tokens))
        assert_close(paged.prefill(sequence), reference_logprobs(model, tokens)[cached:], f"{name}, {cached} cached")


@names
def test_after_preemption(name):
    """All blocks taken away in the middle of generation; prompt and output are computed again."""
    model = tiny(name)
    prompt = prompt_tokens(28, seed=7)
    tokens, theirs = reference_generate(model, prompt, 10)
    paged = PagedModel(model)
    sequence = paged.sequence(prompt)
    first, _ = paged.generate(sequence, 6)
    paged.drop(sequence)
    second, logprobs = paged.generate(sequence, 4, chunk=11)
    assert first + second == tokens
    assert_close(logprobs, theirs[6:], name)


@names
def test_in_a_batch_with_strangers(name):
    """Prefill, decode and chunks of other requests in the same steps, in an order that changes."""
    model = tiny(name)
    prompts = [prompt_tokens(length, seed=length) for length in (20, 3, 37, 11, 50)]
    theirs = [reference_logprobs(model, prompt) for prompt in prompts]
    paged = PagedModel(model)
    sequences = [paged.sequence(prompt) for prompt in prompts]
    budget = [20, 1, 6, 1, 17]
    step = 0
    while any(sequence.computed < len(sequence.tokens) for sequence in sequences):
        order = sorted(range(len(prompts)), key=lambda index: (index * 7 + step * 3) % 5)
        work = [
            (index, min(budget[(index + step) % 5], len(sequences[index].tokens) - sequences[index].computed))
            for index in order
        ]
        work = [(index, count) for index, count in work if count > 0]
        starts = [sequences[index].computed for index, _ in work]
        results = paged.step([Chunk(sequences[index], count) for index, count in work])
        for (index, count), start, ours in zip(work, starts, results):
            assert_close(ours, theirs[index][start : start + count], f"{name}, request {index}, step {step}")
        step += 1


@names
@pytest.mark.parametrize("block_size", [5, 16, 64])
def test_other_block_sizes(name, block_size):
    model = tiny(name)
    tokens = prompt_tokens(40, seed=8)
    paged = PagedModel(model, block_size=block_size, num_blocks=64)
    assert_close(paged.prefill(paged.sequence(tokens), chunk=19), reference_logprobs(model, tokens), name)


def test_the_harness_can_fail():
    """A model with one wrong weight is noticed."""
    model = tiny("llama")
    tokens = prompt_tokens(12)
    paged = PagedModel(model)
    paged.decoder.blocks[1].attention.qkv.weight[3] *= 1.01
    with pytest.raises(AssertionError, match="differ by"):
        assert_close(paged.prefill(paged.sequence(tokens)), reference_logprobs(model, tokens), "llama")
