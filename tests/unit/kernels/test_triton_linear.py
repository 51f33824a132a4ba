"""Linear layers for few tokens against plain torch, with everything that can ride along."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from octavo.kernels.context import Norm
from octavo.kernels.ref.act import act_mul
from octavo.kernels.ref.linear import normed_linear as ref_normed_linear
from octavo.kernels.ref.norm import add_rms_norm as ref_add_rms_norm
from octavo.kernels.triton import linear_shape
from octavo.kernels.triton.linear import linear, linear_parts, normed_linear
from octavo.kernels.triton.linear_one import one_token_linear
from octavo.kernels.triton.linear_shape import Shape, shape_in_parts, shape_whole
from octavo.kernels.triton.linear_some import some_token_linear
from octavo.kernels.triton.norm import add_rms_norm

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = torch.bfloat16 if GPU else torch.float32
CLOSE = {"atol": 5e-2, "rtol": 3e-2} if GPU else {"atol": 1e-4, "rtol": 1e-4}
FULL = [(16, 6144, 1024), (64, 4096, 1024), (33, 12288, 4096)] if GPU else []
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
    want, want_total = ref_normed_linear(t["x"], norm, t["weight"][rows], t["bias"][rows], activation)
    torch.testing.assert_close(got, want, **CLOSE)
    if with_residual:
        torch.testing.assert_close(total, want_total)


def test_a_token_does_not_depend_on_those_beside_it() -> None:
    t = tensors(16, 100, 128)
    shape = Shape(32, 16, 64, 1, 4, 2)
    alone = some_token_linear(t["x"][2:4], t["weight"], None, shape)
    together = some_token_linear(t["x"], t["weight"], None, shape)
    assert torch.equal(alone, together[2:4])


@pytest.mark.parametrize("tokens", [1, 8, 40])
def test_the_entries_of_the_table(tokens) -> None:
    t = tensors(tokens, 64, 96)
    args = (t["x"], Norm(t["norm"], 1e-6, t["residual"]), t["weight"], t["bias"], "silu")
    for got, want in zip(normed_linear(*args), ref_normed_linear(*args), strict=True):
        torch.testing.assert_close(got, want, **CLOSE)
    torch.testing.assert_close(
        linear(t["x"], t["weight"], t["bias"]), F.linear(t["x"], t["weight"], t["bias"]), **CLOSE
    )


@pytest.mark.parametrize("activation", ["none", "silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("tokens", "features", "size"), [(19, 40, 256), (37, 100, 128), (2, 16, 64), *FULL])
def test_some_tokens(tokens, features, size, with_bias, activation) -> None:
    """Tiles that tokens and features do not fill, with all that can ride along."""
    t = tensors(tokens, features, size)
    gated = activation != "none"
    rows = slice(None) if gated else slice(features)
    bias = t["bias"][rows] if with_bias else None
    got = some_token_linear(t["x"], t["weight"][rows], bias, Shape(32, 16, 64, 1, 4, 2), activation)
    want = F.linear(t["x"], t["weight"][rows], bias)
    torch.testing.assert_close(got, act_mul(want, activation) if gated else want, **CLOSE)


@pytest.mark.parametrize(("tokens", "features", "size"), [(5, 40, 1024), (70, 96, 512)])
def test_parts_are_added_by_the_norm(tokens, features, size) -> None:
    t = tensors(tokens, features, size)
    residual, norm = t["residual"][:, :features].contiguous(), t["norm"][:features]
    weight = t["weight"][:features]
    parts = some_token_linear(t["x"], weight, None, Shape(32, 16, 64, 4, 4, 2))
    assert parts.shape == (4, tokens, features)
    assert parts.dtype == torch.float32
    whole = F.linear(t["x"], weight)
    want = ref_add_rms_norm(whole, residual.clone(), norm, 1e-6)
    for add in (add_rms_norm, ref_add_rms_norm):
        for got, right in zip(add(parts, residual.clone(), norm, 1e-6), want):
            torch.testing.assert_close(got, right, **CLOSE)
    joined = linear_parts(t["x"], weight)
    torch.testing.assert_close(joined.sum(0).to(DTYPE) if joined.dim() > 2 else joined, whole, **CLOSE)
    down = torch.randn(24, features, device=DEVICE).to(DTYPE)
    want_y, want_total = ref_normed_linear(whole, Norm(norm, 1e-6, residual), down, None, "silu")
    for following in (normed_linear, ref_normed_linear):
        y, total = following(parts, Norm(norm, 1e-6, residual.clone()), down, None, "silu")
        torch.testing.assert_close(y, want_y, **CLOSE)
        torch.testing.assert_close(total, want_total, **CLOSE)


@pytest.mark.parametrize("hopper", [True, False])
@pytest.mark.parametrize("memory", [232_448, 101_376])
@pytest.mark.parametrize("tokens", [1, 2, 16, 17, 64, 100, 256])
def test_shapes_fit_the_device(tokens, memory, hopper, monkeypatch) -> None:
    """Whole tiles of K, no more shared memory than there is, for a card of a data centre and one of a desk."""
    monkeypatch.setattr(linear_shape, "shared_memory", lambda: memory)
    monkeypatch.setattr(linear_shape, "HOPPER", hopper)
    for features, size in [(1024, 2048), (1024, 3072), (4096, 4096), (896, 4864), (2048, 8960)]:
        x = torch.zeros(tokens, size, dtype=torch.bfloat16)
        gated = shape_whole(x, features, gate=True)
        for shape, rows in ((shape_in_parts(x, features), 1), (shape_whole(x, 4096, gate=False), 1), (gated, 2)):
            if shape is not None:
                assert shape.early == hopper
                assert size % (shape.parts * shape.depth) == 0
                assert shape.tokens * 4 >= tokens
                assert shape.stages >= 2
                assert shape.stages * (rows * shape.features + shape.tokens) * shape.depth * 2 <= memory


@pytest.mark.parametrize("hopper", [True, False])
def test_which_products_are_split(hopper, monkeypatch) -> None:
    """More than one token, never fp32: its sums should not depend on how many tokens stand beside."""
    monkeypatch.setattr(linear_shape, "HOPPER", hopper)
    x = torch.zeros(64, 3072, dtype=torch.bfloat16)
    assert shape_in_parts(x, 1024) is not None
    assert shape_in_parts(x, 8192) is None
    assert (shape_in_parts(x[:1], 1024) is not None) == hopper  # elsewhere linear_one's
    assert shape_in_parts(x.float(), 1024) is None
    assert shape_in_parts(x[:, :3000], 1024) is None
    assert shape_in_parts(x.new_zeros(256, 3072), 1024) is not None
    assert shape_in_parts(x.new_zeros(257, 3072), 1024) is None
    assert (shape_in_parts(x.new_zeros(65, 3072), 4096) is not None) == hopper
    assert (shape_whole(x, 151_936, gate=False) is not None) == hopper
    assert shape_whole(x.float(), 4096, gate=True) is None
