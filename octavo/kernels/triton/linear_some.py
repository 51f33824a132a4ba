"""Linear layers for tens of tokens: the weight is the tall side of the product, K perhaps split over programs.

The first lines of the weight that a program will read are asked into the L2 cache before it waits for the kernel before
it (programmatic dependent launch), so that reading memory goes on between kernels; more than the first crowd out what
is being read. Parts of a split K are left as they are, for the addition and norm that follow to sum.

Some products are the faster for bulk copies (linear_bulk): their shapes say so, and stand before those that take their
place where the device has none.

Legend: T tokens, K input size, N output features, S parts of K.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.act import gated
from octavo.kernels.triton.common import LAUNCH, ask_for, let_next_start, pow2, shared_memory, wait_for_inputs
from octavo.kernels.triton.linear_bulk import BULK, readable, some_tokens_in_bulk, tiles

MAX_FEATURES = 32_768  # an output matrix is cuBLAS's
_FEATURES = 64  # of a program
_LEAST = 4096  # features that keep the device busy without a gate
_PROGRAMS = 128  # that keep it busy
_AHEAD = 128
_LINE = 64  # numbers of 16 bits in a line of the L2 cache
_ANY = 1 << 60


@dataclass(frozen=True, slots=True)
class Shape:
    """What one program computes, and how."""

    features: int
    tokens: int
    depth: int  # of K, at once
    parts: int  # of K, over programs
    warps: int
    stages: int
    bulk: bool = False  # read by bulk copies, if the matrices allow it


@dataclass(frozen=True, slots=True)
class _Best:
    """What was the fastest on an H200, within a layer of a 0.6B, 1.7B, 4B or 8B model, for as many tokens and as many
    numbers in the matrix, or features, as these. Behind the last of a list cuBLAS is as fast."""

    most_tokens: int
    most: int
    tokens: int
    depth: int
    stages: int
    warps: int = 4
    parts: int = 0  # 0: as many as make up the programs
    least_size: int = 0  # of K
    bulk: bool = False


_WHOLE = (  # by the matrix's numbers
    _Best(16, _ANY, tokens=16, depth=128, stages=6),
    _Best(32, 1 << 25, tokens=32, depth=128, stages=6),
    _Best(64, 1 << 23, tokens=32, depth=128, stages=6),
    _Best(64, 1 << 25, tokens=64, depth=128, stages=6, bulk=True),
    _Best(64, 1 << 25, tokens=64, depth=128, stages=4),
    _Best(128, 1 << 23, tokens=64, depth=128, stages=4),
    _Best(256, 1 << 22, tokens=128, depth=128, stages=4, bulk=True),
    _Best(256, 1 << 22, tokens=128, depth=64, stages=4, warps=8),
)
_GATED = (  # by the numbers of one of the two
    _Best(16, _ANY, tokens=16, depth=128, stages=4),
    _Best(32, 1 << 24, tokens=32, depth=128, stages=4),
    _Best(32, 1 << 25, tokens=32, depth=64, stages=4),
    _Best(32, _ANY, tokens=32, depth=128, stages=4),
    _Best(64, 1 << 22, tokens=32, depth=64, stages=6),
    _Best(64, 1 << 24, tokens=64, depth=128, stages=4),
    _Best(64, _ANY, tokens=64, depth=64, stages=4),
    _Best(128, 1 << 22, tokens=64, depth=128, stages=4),
)
_PARTS = (  # by features
    _Best(16, 4096, tokens=16, depth=128, stages=6),
    _Best(32, 4096, tokens=32, depth=128, stages=6),
    _Best(64, 1024, tokens=32, depth=128, stages=6),
    _Best(64, 4096, tokens=64, depth=128, stages=6, bulk=True),
    _Best(64, 4096, tokens=64, depth=128, stages=4),
    _Best(128, 2048, tokens=64, depth=128, stages=4),
    _Best(256, 1024, tokens=64, depth=128, stages=6, bulk=True),
    _Best(256, 1024, tokens=128, depth=64, stages=4, parts=4, least_size=3072),
    _Best(256, 1024, tokens=64, depth=128, stages=4),
)


def shape_whole(x: torch.Tensor, features: int, *, gate: bool) -> Shape | None:
    """How to compute a product whole, with or without a gate; None: cuBLAS is as fast."""
    size = x.shape[1]
    if not _fits(x) or features > MAX_FEATURES or size % 128 or not (gate or features >= _LEAST):
        return None
    best = _find(_GATED if gate else _WHOLE, x, features * size)
    return None if best is None else _shape(best, best.depth, 1, rows=2 * _FEATURES if gate else _FEATURES)


def shape_in_parts(x: torch.Tensor, features: int) -> Shape | None:
    """How to split a product over K; None: it is better whole."""
    tokens, size = x.shape
    best = _find(_PARTS, x, features) if _fits(x) else None
    if best is None:
        return None
    tiles = triton.cdiv(features, _FEATURES) * triton.cdiv(tokens, best.tokens)
    parts = best.parts or pow2(min(8, _PROGRAMS // tiles) + 1) // 2
    while parts > 1 and size % (parts * _LINE):
        parts //= 2
    if parts < 2:
        return None
    return _shape(best, best.depth if size // parts % best.depth == 0 else _LINE, parts, rows=_FEATURES)


def _fits(x: torch.Tensor) -> bool:
    return x.dtype != torch.float32 and x.shape[0] > 1


def _find(table: tuple[_Best, ...], x: torch.Tensor, most: int) -> _Best | None:
    tokens, size = x.shape
    known = (best for best in table if BULK or not best.bulk)
    fit = (best for best in known if tokens <= best.most_tokens and most <= best.most and size >= best.least_size)
    return next(fit, None)


def _shape(best: _Best, depth: int, parts: int, *, rows: int) -> Shape | None:
    """With as many of the stages as the device has shared memory for; None: not even two."""
    stages = min(best.stages, shared_memory() // ((rows + best.tokens) * depth * 2))
    return None if stages < 2 else Shape(_FEATURES, best.tokens, depth, parts, best.warps, stages, best.bulk)


@triton.jit(do_not_specialize=["T"])
def _some_tokens(
    x_ptr, w_ptr, b_ptr, y_ptr, T, N, stride_x, stride_w,
    MINE: tl.constexpr, FEATURES: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    SPLIT: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    let_next_start()
    part = tl.program_id(2)
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    deep = tl.arange(0, DEPTH)
    row_at = w_ptr + tl.minimum(feature, N - 1).to(tl.int64) * stride_w + part * MINE
    ask_for(row_at, AHEAD)
    if ACT != "none":
        ask_for(row_at + N.to(tl.int64) * stride_w, AHEAD)
    wait_for_inputs()
    known, live = feature[:, None] < N, token[None, :] < T
    w_at = row_at[:, None] + deep[None, :]
    x_at = x_ptr + token.to(tl.int64)[None, :] * stride_x + part * MINE + deep[:, None]
    acc = tl.zeros((FEATURES, TOKENS), tl.float32)
    up = tl.zeros((FEATURES, TOKENS), tl.float32)
    for k in tl.range(0, MINE, DEPTH, num_stages=STAGES):
        x = tl.load(x_at + k, mask=live, other=0.0)
        acc = tl.dot(tl.load(w_at + k, mask=known, other=0.0), x, acc)
        if ACT != "none":
            up = tl.dot(tl.load(w_at + N.to(tl.int64) * stride_w + k, mask=known, other=0.0), x, up)
    if BIAS:
        acc += tl.load(b_ptr + feature, mask=feature < N, other=0.0).to(tl.float32)[:, None]
        if ACT != "none":
            up += tl.load(b_ptr + N + feature, mask=feature < N, other=0.0).to(tl.float32)[:, None]
    if ACT != "none":
        acc = gated(acc, up, ACT, y_ptr.dtype.element_ty)
    row = token.to(tl.int64)
    if SPLIT:
        row += part.to(tl.int64) * T
    tl.store(y_ptr + row[None, :] * N + feature[:, None], acc.to(y_ptr.dtype.element_ty), mask=known & live)


def some_token_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Shape, activation: str = "none"
) -> torch.Tensor:
    """``act(x W^T + b)``: ``[T, K] -> [T, N]``, or with K in parts their ``[S, T, N]`` fp32, without a bias."""
    tokens, size = x.shape
    features = weight.shape[0] // (1 if activation == "none" else 2)
    split = shape.parts > 1
    made = (shape.parts, tokens, features) if split else (tokens, features)
    y = torch.empty(made, dtype=torch.float32 if split else x.dtype, device=x.device)
    grid = (triton.cdiv(features, shape.features), triton.cdiv(tokens, shape.tokens), shape.parts)
    adds = bias if bias is not None else x
    options: dict[str, Any] = {
        "MINE": size // shape.parts,
        "FEATURES": shape.features,
        "TOKENS": shape.tokens,
        "DEPTH": shape.depth,
        "STAGES": shape.stages,
        "SPLIT": split,
        "BIAS": bias is not None,
        "num_warps": shape.warps,
        **LAUNCH,
    }
    if shape.bulk and activation == "none" and readable(x) and readable(weight):
        x_tiles, w_tiles = tiles(x, shape.tokens, shape.depth), tiles(weight, shape.features, shape.depth)
        some_tokens_in_bulk[grid](x_tiles, w_tiles, adds, y, tokens, features, **options)
        return y
    ahead = min(size // shape.parts, _AHEAD) // _LINE
    strides = x.stride(0), weight.stride(0)
    _some_tokens[grid](x, weight, adds, y, tokens, features, *strides, ACT=activation, AHEAD=ahead, **options)
    return y
