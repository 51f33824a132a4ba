"""Log-probabilities of the tokens that a caller names, in place of the likeliest."""

import pytest
import torch

from octavo.base.scores import read
from octavo.kernels.ref.describe import describe
from octavo.worker.sample import step
from octavo.worker.sample.logprobs import describe_all, lines_of


def rows_of(described, tops):
    """What the lines of these rows say."""
    return [row for line in lines_of(described, tops) for row in read(line)]


def test_named_tokens_take_the_place_of_the_likeliest():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor([4, 8, 15])
    asked = torch.tensor([[-1, -1, -1], [7, 40, -1], [1, 2, 3]])
    lines = describe(logits, tokens, 3, asked)
    rows = rows_of(lines.numpy(), [2, 2, 3])
    want = logits.log_softmax(-1)
    assert rows[0].ids == logits[0].topk(2).indices.tolist()
    assert rows[1].ids == [7, 40]
    assert rows[2].ids == [1, 2, 3]
    for index, row in enumerate(rows):
        torch.testing.assert_close(torch.tensor(row.logprobs), want[index, row.ids])
        torch.testing.assert_close(torch.tensor(row.logprob), want[index, row.token])


def test_without_names_nothing_changes():
    logits = torch.randn(2, 30, generator=torch.Generator().manual_seed(2))
    tokens = torch.tensor([1, 2])
    nobody = torch.full((2, 4), -1)
    assert torch.equal(describe(logits, tokens, 4), describe(logits, tokens, 4, nobody))


@pytest.mark.parametrize("named", [False, True])
def test_slabs_say_what_the_whole_says(named, monkeypatch):
    monkeypatch.setattr(step, "SLAB", 70)
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(3))
    tokens = torch.tensor([1, 2, 0, 29, 4])
    asked = torch.randint(-1, 30, (5, 4), generator=torch.Generator().manual_seed(4)) if named else None
    assert torch.equal(describe_all(describe, logits, tokens, 4, asked), describe(logits, tokens, 4, asked))


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 7, 8, 100])
def test_slabs_begin_on_sixteen_bytes_where_fours_of_rows_fit(rows):
    spans = list(step.slabs(50, 30, 30 * rows + 29))
    assert all(4 * 30 * span.start % 16 == 0 for span in spans) or rows < 4
    assert [place for span in spans for place in range(50)[span]] == list(range(50))
    assert all(rows - 3 <= span.stop - span.start <= rows for span in spans)


@pytest.mark.parametrize(("vocab", "top"), [(30, 0), (30, 40), (5000, 20), (9000, 1)])
@pytest.mark.parametrize("equals", [False, True])
def test_the_kernel_says_what_the_reference_says(vocab, top, equals):
    kernel = pytest.importorskip("octavo.kernels.triton.describe").describe
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    logits = 3 * torch.randn(4, vocab, generator=torch.Generator().manual_seed(vocab))
    if equals:
        logits = logits.round()
    logits[:, ::7] = -float("inf")
    tokens = torch.tensor([0, 1, vocab - 1, vocab // 2])
    top = min(top, 20)
    got = rows_of(kernel(logits.to(device), tokens.to(device), top).cpu().numpy(), [top] * 4)
    want = rows_of(describe(logits, tokens, top).numpy(), [top] * 4)
    for mine, other, row in zip(got, want, logits):
        assert (mine.token, mine.rank) == (other.token, other.rank)
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        # The reference leaves the order of equals open: here the lowest ids come first.
        order = sorted(range(vocab), key=lambda token: (-row[token].item(), token))
        assert mine.ids == order[:top]


@pytest.mark.parametrize("vocab", [30, 5000])
def test_the_kernel_tells_of_each_row_what_it_wants(vocab):
    kernel = pytest.importorskip("octavo.kernels.triton.describe").describe
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    logits = 3 * torch.randn(5, vocab, generator=torch.Generator().manual_seed(vocab))
    tokens = torch.tensor([0, 1, vocab - 1, 7, 3])
    wanted = [3, -1, 0, 20, 40]
    lines = torch.tensor([[0, top] for top in wanted], dtype=torch.int32)
    told = kernel(logits.to(device), tokens.to(device), 20, None, lines.to(device)[:, 1]).cpu()
    want = describe(logits, tokens, 20)
    for row, top in enumerate(wanted):
        if top >= 0:
            (mine,), (other,) = (rows_of(each[row : row + 1].numpy(), [top]) for each in (told, want))
            assert (mine.token, mine.rank, mine.ids) == (other.token, other.rank, other.ids)
            assert [mine.logprob, *mine.logprobs] == pytest.approx([other.logprob, *other.logprobs], abs=1e-5)
