"""Triton's draw of a token against the plain one; interpreted where there is no GPU."""

import pytest
import torch

pytest.importorskip("triton")

from octavo.kernels.ref import sample as ref
from octavo.kernels.triton.draw import draw

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def both(logits, temperature=None, stream=0, seed=5):
    rows = logits.shape[0]
    generator = torch.Generator().manual_seed(seed)
    seeds = torch.randint(-(1 << 62), 1 << 62, (rows, 2), generator=generator)[:, 0]  # a column, as the table has it
    seeds[0] = -1  # the greatest unsigned seed
    positions = torch.randint(0, 1 << 20, (rows,), generator=generator)
    temperature = torch.ones(rows) if temperature is None else temperature
    given = [each.to(DEVICE) for each in (logits, seeds, positions, temperature)]
    return draw(*given, stream).cpu(), ref.draw(*given, stream).cpu()


@pytest.mark.parametrize(("rows", "vocab"), [(1, 7), (5, 4096), (9, 5000), (33, 9001)])
@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
@pytest.mark.parametrize("stream", [0, 3])
def test_the_same_tokens_are_drawn(rows, vocab, scale, stream):
    torch.manual_seed(rows)
    logits = torch.randn(rows, vocab) * scale
    logits[torch.rand(rows, vocab) < 0.3] = -float("inf")
    logits[:, 3] = 0.0
    ours, theirs = both(logits, stream=stream)
    assert torch.equal(ours, theirs)
    assert logits.gather(1, ours[:, None]).isfinite().all()


def test_greedy_rows_among_others():
    torch.manual_seed(1)
    logits = torch.randn(12, 6000)
    temperature = torch.tensor([0.0, 1.0] * 6)
    ours, theirs = both(logits, temperature)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours[::2], logits[::2].argmax(-1))
    assert not torch.equal(ours[1::2], logits[1::2].argmax(-1))


def test_rows_that_are_no_distribution():
    logits = torch.zeros(6, 5000)
    logits[1] = -float("inf")
    logits[2, 4500] = float("nan")
    logits[3, 17] = float("inf")
    logits[4] = -float("inf")
    logits[4, 4999] = -3e38  # one token is left
    ours, theirs = both(logits)
    assert torch.equal(ours, theirs)
    assert ours[1:5].tolist() == [-1, -1, -1, 4999]


def test_a_distribution_is_followed():
    probs = torch.tensor([0.5, 0.2, 0.0, 0.3])
    rows = 4000 if torch.cuda.is_available() else 400
    ours, theirs = both(probs.log().expand(rows, -1).contiguous())
    assert torch.equal(ours, theirs)
    share = torch.bincount(ours, minlength=4) / rows
    assert share[2] == 0
    assert (share - probs).abs().max() < 0.09
