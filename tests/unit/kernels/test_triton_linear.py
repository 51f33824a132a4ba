"""Linear layers for few tokens against plain torch, with everything that can ride along."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from octavo.kernels.ref.act import act_mul
from octavo.kernels.ref.linear import normed_linear as ref_normed_linear
from octavo.kernels.triton.linear import (
    MAX_STRIP,
    Norm,
    few_token_linear,
    linear,
    normed_linear,
    one_token_linear,
)

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = torch.bfloat16 if GPU else torch.float32
CLOSE = {"atol": 5e-2, "rtol": 3e-2} if GPU else {"atol": 1e-4, "rtol": 1e-4}
SHAPES = [(3, 64, 600), (16, 100, 96), (5, 40, 2100)]
FULL = [(16, 6144, 1024), (7, 1024, 2048), (2, 1024, 3072)] if GPU else []
ONE = [(70, 130), (33, 1024)]
ONE_FULL = [(4096, 1024), (1024, 3072), (4096, 12288)] if GPU else []


def tensors(tokens: int, features: int, size: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    shapes = {
        "x": (tokens, size),
        "residual": (tokens, size),
        "weight": (2 * features, size),
        "bias": (2 * features,),
    }
    made = {name: torch.randn(shape, device=DEVICE).to(DTYPE) for name, shape in shapes.items()}
    made["weight"] *= size**-0.5
    made["norm"] = torch.randn(size, device=DEVICE)
    return made


@pytest.mark.parametrize(("features", "size"), ONE + ONE_FULL)
@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("with_residual", [True, False])
def test_norm_and_gate_ride_along_with_one_token(features, size, activation, with_residual) -> None:
    t = tensors(1, features, size)
    rows = slice(None) if activation else slice(features)
    residual = t["residual"] if with_residual else None
    norm = Norm(t["norm"], 1e-6, residual)
    got, total = one_token_linear(t["x"], t["weight"][rows], t["bias"][rows], norm, activation or "none")
    want, want_total = ref_normed_linear(
        t["x"], residual, t["norm"], 1e-6, t["weight"][rows], t["bias"][rows], activation
    )
    torch.testing.assert_close(got, want, **CLOSE)
    if with_residual:
        torch.testing.assert_close(total, want_total)


@pytest.mark.parametrize(("tokens", "features", "size"), SHAPES + FULL)
@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh", "gelu"])
def test_few_tokens(tokens, features, size, activation) -> None:
    if activation and size > MAX_STRIP:
        pytest.skip("a gated product takes one strip of K")
    t = tensors(tokens, features, size)
    rows = slice(None) if activation else slice(features)
    got = few_token_linear(t["x"], t["weight"][rows], t["bias"][rows], activation or "none")
    want = F.linear(t["x"], t["weight"][rows], t["bias"][rows])
    torch.testing.assert_close(got, act_mul(want, activation) if activation else want, **CLOSE)


def test_a_token_does_not_depend_on_those_beside_it() -> None:
    t = tensors(16, 100, 96)
    alone = few_token_linear(t["x"][2:4], t["weight"], None)
    together = few_token_linear(t["x"], t["weight"], None)
    assert torch.equal(alone, together[2:4])


@pytest.mark.parametrize("tokens", [1, 8, 40])
def test_the_entries_of_the_table(tokens) -> None:
    t = tensors(tokens, 64, 96)
    args = (t["x"], t["residual"], t["norm"], 1e-6, t["weight"], t["bias"], "silu")
    for got, want in zip(normed_linear(*args), ref_normed_linear(*args), strict=True):
        torch.testing.assert_close(got, want, **CLOSE)
    torch.testing.assert_close(
        linear(t["x"], t["weight"], t["bias"]), F.linear(t["x"], t["weight"], t["bias"]), **CLOSE
    )
