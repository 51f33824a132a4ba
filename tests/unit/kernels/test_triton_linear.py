"""Linear layers for few tokens against plain torch, with everything that can ride along."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from octavo.kernels.ref.linear import normed_linear as ref_normed_linear
from octavo.kernels.triton.linear import Norm, few_token_linear, normed_linear

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = torch.bfloat16 if GPU else torch.float32
CLOSE = {"atol": 5e-2, "rtol": 3e-2} if GPU else {"atol": 1e-4, "rtol": 1e-4}
SHAPES = [(1, 70, 130), (1, 33, 1024), (3, 64, 600), (16, 100, 96)]
FULL = [(1, 4096, 1024), (1, 4096, 12288), (16, 6144, 1024), (7, 1024, 2048)] if GPU else []


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


@pytest.mark.parametrize(("tokens", "features", "size"), SHAPES + FULL)
@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("with_residual", [True, False])
def test_norm_and_gate_ride_along(tokens, features, size, activation, with_residual) -> None:
    t = tensors(tokens, features, size)
    rows = slice(None) if activation else slice(features)
    residual = t["residual"] if with_residual else None
    norm = Norm(t["norm"], 1e-6, residual)
    got, total = few_token_linear(t["x"], t["weight"][rows], t["bias"][rows], norm, activation or "none")
    want, want_total = ref_normed_linear(
        t["x"], residual, t["norm"], 1e-6, t["weight"][rows], t["bias"][rows], activation
    )
    torch.testing.assert_close(got, want, **CLOSE)
    if with_residual:
        torch.testing.assert_close(total, want_total)


@pytest.mark.parametrize(("tokens", "features", "size"), SHAPES + FULL)
def test_plain_product(tokens, features, size) -> None:
    t = tensors(tokens, features, size)
    got, total = few_token_linear(t["x"], t["weight"], None)
    assert total is None
    torch.testing.assert_close(got, F.linear(t["x"], t["weight"]), **CLOSE)


def test_a_token_does_not_depend_on_those_beside_it() -> None:
    t = tensors(16, 100, 96)
    alone, _ = few_token_linear(t["x"][2:4], t["weight"], None)
    together, _ = few_token_linear(t["x"], t["weight"], None)
    assert torch.equal(alone, together[2:4])


@pytest.mark.parametrize("tokens", [1, 40])
def test_the_entry_of_the_table(tokens) -> None:
    t = tensors(tokens, 64, 96)
    args = (t["x"], t["residual"], t["norm"], 1e-6, t["weight"], t["bias"], "silu")
    for got, want in zip(normed_linear(*args), ref_normed_linear(*args), strict=True):
        torch.testing.assert_close(got, want, **CLOSE)
