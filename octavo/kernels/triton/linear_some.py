"""Linear layers for tens of tokens: the weight is the tall side of the product, K perhaps split over programs.

The first lines of the weight that a program will read are asked into the L2 cache before it waits for the kernel before
it (programmatic dependent launch), so that reading memory goes on between kernels; more than the first crowd out what
is being read. Parts of a split K are left as they are, for the addition and norm that follow to sum.

Legend: T tokens, K input size, N output features, S parts of K.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.act import gated
from octavo.kernels.triton.common import LAUNCH, ask_for, let_next_start, pow2, shared_memory, wait_for_inputs

MAX_TOKENS = 64
MAX_TOKENS_IN_PARTS = 128
MAX_FEATURES = 32_768  # an output matrix is cuBLAS's
MAX_NUMBERS = 1 << 24  # of a matrix; with more cuBLAS is as fast for more than 16 tokens, unless a gate rides along
_FEATURES = 64
_PROGRAMS = 128  # that keep the device busy
_AHEAD = 128
_LINE = 64  # numbers of 16 bits in a line of the L2 cache


@dataclass(frozen=True, slots=True)
class Shape:
    """What one program computes, and how."""

    features: int
    tokens: int
    depth: int  # of K, at once
    parts: int  # of K, over programs
    warps: int
    stages: int


def shape_whole(x: torch.Tensor, features: int, *, gate: bool) -> Shape | None:
    """How to compute a product whole, with or without a gate; None: cuBLAS is as fast."""
    tokens, size = x.shape
    if x.dtype == torch.float32 or not 1 < tokens <= MAX_TOKENS or features > MAX_FEATURES or size % 128:
        return None
    padded = max(16, pow2(tokens))
    if gate:
        big = features * size >= MAX_NUMBERS
        return _fitted(padded, 128 if padded == 16 else 64, 1, 4, rows=2 * _FEATURES) if big or padded <= 32 else None
    if features < _FEATURES * _PROGRAMS // 2 or (padded > 16 and features * size > MAX_NUMBERS):
        return None
    return _fitted(padded, 128, 1, 6 if padded < 64 else 4, rows=_FEATURES)


def shape_in_parts(x: torch.Tensor, features: int) -> Shape | None:
    """How to split a product over K; None: it is better whole."""
    tokens, size = x.shape
    parts = min(8, _PROGRAMS * _FEATURES // features)
    most = MAX_TOKENS_IN_PARTS if parts > 2 else MAX_TOKENS
    if x.dtype == torch.float32 or not 1 < tokens <= most or parts < 2:
        return None
    parts = pow2(parts + 1) // 2
    if size % (parts * _LINE):
        return None
    depth = 128 if size // parts % 128 == 0 else 64
    padded = max(16, pow2(tokens))
    return _fitted(padded, depth, parts, 6 if padded <= 64 else 3, rows=_FEATURES)


def _fitted(tokens: int, depth: int, parts: int, stages: int, *, rows: int) -> Shape | None:
    """With as many of the stages as the device has shared memory for; None: not even two."""
    stages = min(stages, shared_memory() // ((rows + tokens) * depth * 2))
    return None if stages < 2 else Shape(_FEATURES, tokens, depth, parts, 4, stages)


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
    _some_tokens[grid](
        x,
        weight,
        bias if bias is not None else x,
        y,
        tokens,
        features,
        x.stride(0),
        weight.stride(0),
        MINE=size // shape.parts,
        FEATURES=shape.features,
        TOKENS=shape.tokens,
        DEPTH=shape.depth,
        STAGES=shape.stages,
        SPLIT=split,
        BIAS=bias is not None,
        ACT=activation,
        AHEAD=min(size // shape.parts, _AHEAD) // _LINE,
        num_warps=shape.warps,
        **LAUNCH,
    )
    return y
