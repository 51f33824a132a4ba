"""Linear layers for tens of tokens: the weight is the tall side of the product, K perhaps split over programs.

The first lines of the weight that a program will read are asked into the L2 cache before it waits for the kernel before
it (programmatic dependent launch), so that reading memory goes on between kernels; more than the first crowd out what
is being read. Parts of a split K are left as they are, for the addition and norm that follow to sum.

Where the device can have whole tiles of the weight on their way by then, another kernel takes their place
(linear_early). Legend: T tokens, K input size, N output features, S parts of K.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.act import gated
from octavo.kernels.triton.common import LAUNCH, ask_for, let_next_start, wait_for_inputs
from octavo.kernels.triton.hopper import readable
from octavo.kernels.triton.linear_early import early_linear
from octavo.kernels.triton.linear_shape import LINE, Shape, result_of

_AHEAD = 128


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
    if shape.early and readable(x) and readable(weight):
        return early_linear(x, weight, bias, shape, activation)
    tokens, size = x.shape
    features = weight.shape[0] // (1 if activation == "none" else 2)
    y = result_of(x, features, shape)
    grid = (triton.cdiv(features, shape.features), triton.cdiv(tokens, shape.tokens), shape.parts)
    adds = bias if bias is not None else x
    options: dict[str, Any] = {
        "MINE": size // shape.parts,
        "FEATURES": shape.features,
        "TOKENS": shape.tokens,
        "DEPTH": shape.depth,
        "STAGES": shape.stages,
        "SPLIT": shape.parts > 1,
        "BIAS": bias is not None,
        "num_warps": shape.warps,
        **LAUNCH,
    }
    ahead = min(size // shape.parts, _AHEAD) // LINE
    strides = x.stride(0), weight.stride(0)
    _some_tokens[grid](x, weight, adds, y, tokens, features, *strides, ACT=activation, AHEAD=ahead, **options)
    return y
