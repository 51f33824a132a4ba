"""What stands before and behind a draw: forbidden tokens, and the tokens' way into their lines. Every implementation
against words of plain Python; Triton's interpreted where there is no GPU."""

import numpy as np
import pytest
import torch

from octavo.kernels.cpu import table as native
from octavo.kernels.ref import sample as ref

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INF = float("inf")


def triton(name):
    pytest.importorskip("triton")
    from octavo.kernels.triton import forbid, write_tokens

    return getattr({"forbid": forbid, "write_tokens": write_tokens}[name], name)


FORBID = {"ref": lambda: ref.forbid, "native": lambda: native.forbid, "triton": lambda: triton("forbid")}
WRITE = {"ref": lambda: ref.write_tokens, "triton": lambda: triton("write_tokens")}


def forbidden(forbid, name, logits, rows, masks):
    device = torch.device("cpu") if name == "native" else DEVICE
    given = logits.to(device)
    forbid(given, torch.tensor(rows, dtype=torch.int32, device=device), torch.from_numpy(masks).to(device))
    return given.cpu()


def random_masks(rng, count, vocab):
    return rng.integers(-(1 << 31), 1 << 31, (count, -(-vocab // 32)), dtype=np.int64).astype(np.int32)


@pytest.mark.parametrize("name", FORBID)
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 4096, 4097, 9001])
@pytest.mark.parametrize("rows", [[], [0], [3, 1], [0, 1, 2, 3]])
def test_only_forbidden_tokens_of_masked_rows_go(name, vocab, rows):
    rng = np.random.default_rng(vocab)
    logits = torch.from_numpy(rng.standard_normal((4, vocab)).astype(np.float32))
    logits[1, :: max(1, vocab // 5)] = -INF
    masks = random_masks(rng, len(rows), vocab)
    expected = logits.clone()
    for mask, row in zip(masks, rows):
        for token in range(vocab):
            if not int(mask[token // 32]) >> (token % 32) & 1:
                expected[row, token] = -INF
    assert torch.equal(forbidden(FORBID[name](), name, logits, rows, masks), expected)


@pytest.mark.parametrize("name", FORBID)
@pytest.mark.parametrize("spoil", [float("nan"), -float("nan"), INF])
@pytest.mark.parametrize("allowed", [0, -1])
def test_what_is_no_number_stays(name, spoil, allowed):
    logits = torch.zeros(3, 5000)
    logits[1, 4321] = spoil
    masks = np.full((3, 157), allowed, dtype=np.int32)
    masks[:, 0] |= 4
    after = forbidden(FORBID[name](), name, logits, [0, 1, 2], masks)
    assert ref.greedy(after).tolist() == [2 if allowed == 0 else 0, -1, 2 if allowed == 0 else 0]
    assert after[1, 4321].isnan() if spoil != INF else after[1, 4321] == INF


@pytest.mark.parametrize("name", FORBID)
def test_a_row_of_a_wider_buffer(name):
    wide = torch.zeros(2, 100)
    masks = np.array([[1 << 5, 0]], dtype=np.int32)
    device = torch.device("cpu") if name == "native" else DEVICE
    given = wide.to(device)
    FORBID[name]()(
        given[:, :40], torch.tensor([1], dtype=torch.int32, device=device), torch.from_numpy(masks).to(device)
    )
    expected = wide.clone()
    expected[1, :40] = -INF
    expected[1, 5] = 0.0
    assert torch.equal(given.cpu(), expected)


@pytest.mark.parametrize("name", WRITE)
@pytest.mark.parametrize("count", [0, 1, 127, 128, 300])
def test_tokens_come_to_their_places(name, count):
    rng = np.random.default_rng(count)
    lines = torch.zeros(310, 24, dtype=torch.int32)
    rows, positions = rng.permutation(310)[:count], rng.integers(0, 24, count)
    tokens = rng.integers(-1, 1 << 20, count)
    expected = lines.clone()
    for row, position, token in zip(rows, positions, tokens):
        expected[row, position] = max(int(token), 0)
    given = lines.to(DEVICE)
    WRITE[name]()(given, *(torch.from_numpy(each).to(DEVICE) for each in (rows, positions, tokens)))
    assert torch.equal(given.cpu(), expected)
