"""Products whose weights come early, on the GPU that has what they need; what they are is tested without (compile)."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from octavo.kernels.ref.act import act_mul
from octavo.kernels.triton import linear_some
from octavo.kernels.triton.hopper import HOPPER, readable
from octavo.kernels.triton.linear_early import early_linear
from octavo.kernels.triton.linear_shape import Shape, shape_in_parts, shape_whole
from octavo.kernels.triton.linear_some import some_token_linear

on_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALVES = [torch.float16, torch.bfloat16]
WHOLE = [
    Shape(64, 8, 128, 1, 4, 12, True),
    Shape(128, 8, 128, 1, 4, 6, True),
    Shape(64, 16, 128, 1, 4, 10, True),
    Shape(64, 32, 64, 1, 4, 2, True),  # fewer tiles at once than a product has
    Shape(64, 64, 128, 1, 4, 6, True),
    Shape(128, 64, 64, 1, 4, 9, True),
]
PARTS = [Shape(64, 16, 128, 2, 4, 10, True), Shape(64, 64, 64, 4, 4, 6, True), Shape(128, 64, 64, 2, 4, 3, True)]
GATED = [
    Shape(32, 8, 128, 1, 4, 11, True),
    Shape(32, 16, 128, 1, 4, 10, True),
    Shape(32, 64, 64, 1, 4, 3, True),
    Shape(64, 64, 64, 1, 4, 8, True),
]
TOKENS = [1, 2, 8, 16, 33, 64, 100, 129, 256]


def close_to_fp32(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """But for one rounding at the end."""
    want = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    torch.testing.assert_close(got, want.to(got.dtype), atol=1e-3, rtol=2**-7)


@on_hopper
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("shape", [*WHOLE, *PARTS], ids=str)
def test_products(shape, tokens, dtype) -> None:
    """Tiles over the edge of both matrices, in parts or with a bias, x in a slice of wider rows."""
    torch.manual_seed(tokens)
    wide = torch.randn(tokens, 520, device=DEVICE).to(dtype)
    weight = (torch.randn(104, 256, device=DEVICE) / 16).to(dtype)
    x, bias = wide[:, 8:264], torch.randn(104, device=DEVICE).to(dtype)
    wide[:, 264:] = float("nan")  # of a neighbour
    if shape.parts == 1:
        close_to_fp32(early_linear(x, weight, bias, shape), x, weight, bias)
    parts = early_linear(x, weight, None, shape)
    assert parts.shape == ((shape.parts, tokens, 104) if shape.parts > 1 else (tokens, 104))
    close_to_fp32(parts.sum(0) if shape.parts > 1 else parts, x, weight, None)


@on_hopper
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("shape", GATED, ids=str)
def test_gated_products(shape, tokens, with_bias, activation) -> None:
    torch.manual_seed(tokens)
    x, weight = torch.randn(tokens, 384, device=DEVICE), torch.randn(2 * 200, 384, device=DEVICE) / 384**0.5
    x, weight, bias = (each.bfloat16() for each in (x, weight, torch.randn(2 * 200, device=DEVICE)))
    bias = bias if with_bias else None
    got = early_linear(x, weight, bias, shape, activation)
    torch.testing.assert_close(got, act_mul(F.linear(x, weight, bias), activation), atol=2e-2, rtol=2e-2)


@on_hopper
@pytest.mark.parametrize(
    ("features", "size"), [(4096, 1024), (6144, 4096), (1024, 3072), (4096, 12288), (151_936, 1024)]
)
@pytest.mark.parametrize("tokens", [1, 3, 16, 32, 64, 128, 192])
def test_the_shapes_of_models(features, size, tokens) -> None:
    """Many units a program, those of the tables; the same numbers however often."""
    torch.manual_seed(0)
    x = torch.randn(tokens, size, device=DEVICE).bfloat16()
    weight = (torch.randn(features, size, device=DEVICE) * size**-0.5).bfloat16()
    shapes = [shape_whole(x, features, gate=False), shape_in_parts(x, features)]
    for shape in (shape for shape in shapes if shape is not None):
        assert shape.early
        got = some_token_linear(x, weight, None, shape)
        close_to_fp32(got.sum(0) if shape.parts > 1 else got, x, weight, None)
        for _ in range(20):
            assert torch.equal(some_token_linear(x, weight, None, shape), got)
    gate = shape_whole(x, features // 2, gate=True)
    if gate is not None:
        got = some_token_linear(x, weight, None, gate, "silu")
        torch.testing.assert_close(got, act_mul(F.linear(x, weight), "silu"), atol=2e-2, rtol=2e-2)


@on_hopper
def test_nothing_is_read_behind_the_last_row() -> None:
    x, weight = (torch.full((100, 128), float("nan"), device=DEVICE, dtype=torch.float16) for _ in range(2))
    x[:40], weight[:72] = 1.0, 1.0
    y = early_linear(x[:40], weight[:72], None, Shape(64, 64, 64, 1, 4, 3, True))
    assert torch.equal(y, torch.full_like(y, 128.0))


def test_what_bulk_copies_cannot_read_is_read_plainly(monkeypatch) -> None:
    torch.manual_seed(1)
    early = []
    monkeypatch.setattr(linear_some, "early_linear", lambda *arguments: early.append(arguments))
    shape = Shape(64, 64, 64, 1, 4, 3, True)
    wide = torch.randn(40, 140, device=DEVICE).half()
    weight = (torch.randn(80, 128, device=DEVICE) / 16).half()
    for x in (wide[:, :128], wide.repeat(1, 2)[:, 1:129]):  # rows that begin anywhere; a first number that does
        assert not readable(x)
        close_to_fp32(some_token_linear(x, weight, None, shape), x, weight, None)
    assert not readable(weight.float())
    assert not readable(weight.T)
    assert not early
    some_token_linear(wide[:, :128].contiguous(), weight, None, shape)
    assert len(early) == 1
