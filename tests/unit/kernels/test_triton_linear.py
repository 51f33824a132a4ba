"""Linear layers for few tokens against plain torch, with everything that can ride along."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from octavo.kernels.context import Norm
from octavo.kernels.ref.act import act_mul
from octavo.kernels.ref.linear import normed_linear as ref_normed_linear
from octavo.kernels.ref.norm import add_rms_norm as ref_add_rms_norm
from octavo.kernels.triton import linear_bulk, linear_some
from octavo.kernels.triton.common import shared_memory
from octavo.kernels.triton.linear import linear, linear_parts, normed_linear
from octavo.kernels.triton.linear_one import one_token_linear
from octavo.kernels.triton.linear_some import Shape, shape_in_parts, shape_whole, some_token_linear
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


HALVES = [torch.float16, torch.bfloat16] if GPU else [torch.float16]  # the interpreter multiplies bfloat16's bits
BULK = [Shape(64, 64, 128, 1, 4, 6, bulk=True), Shape(64, 128, 128, 1, 4, 4, bulk=True)]
BULK_PARTS = [Shape(64, 64, 128, 2, 4, 6, bulk=True), Shape(64, 64, 64, 2, 4, 6, bulk=True)]
ABLE = linear_bulk.BULK and shared_memory() > 196_656  # of the largest
can_bulk = pytest.mark.skipif(GPU and not ABLE, reason="needs a GPU of a data centre, from Hopper on")


@pytest.fixture
def read_in_bulk(monkeypatch) -> list[tuple[int, int]]:
    """The tiles in which matrices were given to bulk copies."""
    seen = []

    def tiles(matrix, rows, columns):
        seen.append((rows, columns))
        return linear_bulk.tiles(matrix, rows, columns)

    monkeypatch.setattr(linear_some, "tiles", tiles)
    return seen


def close_to_fp32(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """But for one rounding at the end."""
    want = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    torch.testing.assert_close(got, want.to(got.dtype), atol=1e-3, rtol=2**-7)


@can_bulk
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tokens", [2, 33, 50, 64, 100, 129, 250, 256])
@pytest.mark.parametrize("shape", [*BULK, *BULK_PARTS], ids=str)
def test_products_read_by_bulk_copies(shape, tokens, dtype, read_in_bulk) -> None:
    """Tiles over the edge of both matrices, in parts or with a bias, x in a slice of wider rows."""
    torch.manual_seed(tokens)
    wide = torch.randn(tokens, 520, device=DEVICE).to(dtype)
    weight = (torch.randn(104, 256, device=DEVICE) / 16).to(dtype)
    x, bias = wide[:, 8:264], torch.randn(104, device=DEVICE).to(dtype)
    wide[:, 264:] = float("nan")  # of a neighbour
    if shape.parts == 1:
        close_to_fp32(some_token_linear(x, weight, bias, shape), x, weight, bias)
    parts = some_token_linear(x, weight, None, shape)
    assert parts.shape == ((shape.parts, tokens, 104) if shape.parts > 1 else (tokens, 104))
    close_to_fp32(parts.sum(0) if shape.parts > 1 else parts, x, weight, None)
    assert set(read_in_bulk) == {(shape.tokens, shape.depth), (shape.features, shape.depth)}


@can_bulk
def test_bulk_copies_do_not_read_behind_the_last_row() -> None:
    x, weight = (torch.full((100, 128), float("nan"), device=DEVICE, dtype=torch.float16) for _ in range(2))
    x[:40], weight[:72] = 1.0, 1.0
    y = some_token_linear(x[:40], weight[:72], None, Shape(64, 64, 64, 1, 4, 3, bulk=True))
    assert torch.equal(y, torch.full_like(y, 128.0))


def test_what_bulk_copies_cannot_read_is_read_plainly(read_in_bulk) -> None:
    torch.manual_seed(1)
    shape = Shape(64, 64, 64, 1, 4, 3, bulk=True)
    wide = torch.randn(40, 140, device=DEVICE).half()
    weight = (torch.randn(80, 128, device=DEVICE) / 16).half()
    for x in (wide[:, :128], wide.repeat(1, 2)[:, 1:129]):  # rows that begin anywhere; a first number that does
        assert not linear_bulk.readable(x)
        close_to_fp32(some_token_linear(x, weight, None, shape), x, weight, None)
    assert not linear_bulk.readable(weight.float())
    assert not linear_bulk.readable(weight.T)
    assert not read_in_bulk


def test_which_products_are_read_by_bulk_copies(monkeypatch) -> None:
    """What was faster so on an H200, where the device can; else the shapes of plain loads."""

    def shapes(tokens: int) -> list[Shape | None]:
        x = torch.zeros(tokens, 4096, dtype=torch.bfloat16)
        wide = x.new_zeros(tokens, 12_288)
        large = shape_whole(x, 6144, gate=False), shape_in_parts(x, 4096), shape_in_parts(wide, 4096)
        small = shape_whole(x[:, :1024], 4096, gate=False), *(shape_in_parts(x[:, :k], 1024) for k in (2048, 3072))
        return [*large, *small, shape_whole(x, 12_288, gate=True)]

    monkeypatch.setattr(linear_some, "BULK", True)
    one, two = BULK[0], BULK_PARTS[0]
    assert shapes(64)[:3] == shapes(33)[:3] == [one, two, two]
    assert shapes(256)[3:6] == [BULK[1], two, two]
    for tokens in (16, 32):
        assert not any(shape is not None and shape.bulk for shape in shapes(tokens))
    assert not any(shape is not None and shape.bulk for shape in shapes(64)[3:])
    monkeypatch.setattr(linear_some, "BULK", False)
    assert not any(shape is not None and shape.bulk for tokens in (64, 256) for shape in shapes(tokens))
    assert shapes(64)[0] == Shape(64, 64, 128, 1, 4, 4)


@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize("memory", [232_448, 101_376])
@pytest.mark.parametrize("tokens", [2, 16, 17, 64, 100, 256])
def test_shapes_fit_the_device(tokens, memory, bulk, monkeypatch) -> None:
    """Whole tiles of K, no more shared memory than there is, for a card of a data centre and one of a desk."""
    monkeypatch.setattr(linear_some, "shared_memory", lambda: memory)
    monkeypatch.setattr(linear_some, "BULK", bulk)
    for features, size in [(1024, 2048), (1024, 3072), (4096, 4096), (896, 4864), (2048, 8960)]:
        x = torch.zeros(tokens, size, dtype=torch.bfloat16)
        for shape in (shape_in_parts(x, features), shape_whole(x, features, gate=True)):
            if shape is not None:
                assert size % (shape.parts * shape.depth) == 0
                assert shape.tokens * 4 >= tokens
                assert shape.stages * (shape.features + shape.tokens) * shape.depth * 2 <= memory


def test_which_products_are_split() -> None:
    """More than one token, never fp32: its sums should not depend on how many tokens stand beside."""
    x = torch.zeros(64, 3072, dtype=torch.bfloat16)
    assert shape_in_parts(x, 1024) is not None
    assert shape_in_parts(x, 8192) is None
    assert shape_in_parts(x[:1], 1024) is None
    assert shape_in_parts(x.float(), 1024) is None
    assert shape_in_parts(x[:, :3000], 1024) is None
    assert shape_in_parts(x.new_zeros(256, 3072), 1024) is not None
    assert shape_in_parts(x.new_zeros(257, 3072), 1024) is None
    assert shape_in_parts(x.new_zeros(65, 3072), 4096) is None
    assert shape_whole(x, 151_936, gate=False) is None
    assert shape_whole(x.float(), 4096, gate=True) is None
