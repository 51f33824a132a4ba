"""top_k, top_p and min_p: every implementation against a sort in plain numpy; Triton's interpreted without a GPU."""

import numpy as np
import pytest
import torch

from octavo.kernels.ref import narrow as ref

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def triton():
    pytest.importorskip("triton")
    from octavo.kernels.triton.narrow import narrow

    return narrow


NARROW = {"ref": lambda: ref.narrow, "triton": triton}
ASKED = [  # top_k, top_p, min_p
    (0, 1.0, 0.0),
    (1, 1.0, 0.0),
    (20, 0.8, 0.0),
    (7, 1.0, 0.0),
    (0, 0.9, 0.0),
    (0, 0.05, 0.0),
    (0, 1.0, 0.1),
    (50, 0.95, 0.02),
    (3000, 0.99, 0.0),
    (1 << 30, 0.5, 0.5),
    (40, 1e-9, 0.0),
]
SHAPES = {
    "peaked": lambda rng, vocab: rng.normal(0, 4, vocab),
    "flat": lambda rng, vocab: rng.normal(0, 0.01, vocab),
    "equals": lambda rng, vocab: np.round(rng.normal(0, 2, vocab)),
    "one": lambda rng, vocab: np.where(np.arange(vocab) == vocab // 2, 90.0, rng.normal(0, 1, vocab)),
    "forbidden": lambda rng, vocab: np.where(rng.random(vocab) < 0.9, -np.inf, rng.normal(0, 3, vocab)),
    # The likeliest in places 4096 apart: more of them in a group than it remembers.
    "crowded": lambda rng, vocab: rng.normal(0, 1, vocab) + 9.0 * (np.arange(vocab) % 4096 == 5),
}


def kept(logits, top_k, top_p, min_p):
    """The tokens that must stay, and those that may: rounding decides about the last few that top_p asks for."""
    x = logits.astype(np.float64)
    stay = x >= x.max() + (np.log(min_p) if min_p > 0 else -np.inf)
    if 0 < top_k < stay.sum():
        stay &= x >= np.sort(x[stay])[-top_k]
    if top_p >= 1.0:
        return stay, stay
    mass = np.where(stay, np.exp(x - x.max()), 0.0)
    order = np.argsort(-x, kind="stable")
    held = np.cumsum(mass[order]) / mass.sum()

    def until(target):
        last = order[min(int(np.searchsorted(held, target)), len(order) - 1)]
        return stay & (x >= x[last])

    return until(top_p * (1 - 1e-5)), until(min(1.0, top_p * (1 + 1e-5)))


def run(name, logits, asked):
    columns = torch.zeros(len(asked), 6, dtype=torch.int32)
    floats = columns[:, 1:3].view(torch.float32)
    for row, (top_k, top_p, min_p) in enumerate(asked):
        columns[row, 3] = top_k
        floats[row] = torch.tensor([top_p, min_p])
    columns = columns.to(DEVICE)
    floats = columns[:, 1:3].view(torch.float32)
    given = torch.from_numpy(logits).to(DEVICE)
    NARROW[name]()(given, columns[:, 3], floats[:, 0], floats[:, 1])
    return given.cpu().numpy()


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("vocab", [50, 4097, 20_001])
def test_what_is_kept(name, shape, vocab):
    rng = np.random.default_rng(vocab)
    logits = np.stack([SHAPES[shape](rng, vocab) for _ in ASKED]).astype(np.float32)
    after = run(name, logits.copy(), ASKED)
    for row, asked in enumerate(ASKED):
        stays = after[row] > -np.inf
        assert (after[row][stays] == logits[row][stays]).all()
        must, may = kept(logits[row], *asked)
        finite = logits[row] > -np.inf
        assert stays[must & finite].all(), asked
        assert not stays[~may].any(), asked


@pytest.mark.parametrize("name", NARROW)
def test_rows_alone_and_together(name):
    """Each row of one way of asking alone gives what it gives among others."""
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (len(ASKED), 5000)).astype(np.float32)
    together = run(name, logits.copy(), ASKED)
    for row, asked in enumerate(ASKED):
        alone = run(name, logits[row : row + 1].copy(), [asked])
        assert ((alone[0] > -np.inf) == (together[row] > -np.inf)).mean() > 0.9999


@pytest.mark.parametrize("spoil", [float("nan"), float("inf")])
def test_a_row_that_is_no_number_is_left_to_the_draw(spoil):
    logits = np.zeros((2, 6000), dtype=np.float32)
    logits[:, 7] = 5.0
    logits[0, 5999] = spoil
    after = run("triton", logits.copy(), [(1, 0.5, 0.1)] * 2)
    assert np.array_equal(after[0], logits[0], equal_nan=True)
    assert (after[1] > -np.inf).sum() == 1
