"""Linear layers for one token, where the time is that of reading the weights once and of starting kernels.

A program holds whole rows of the weight, for all of K, in registers: the loads are under way before it waits for the
kernel before (programmatic dependent launch). The residual add and the RMS norm before, and the gated activation
after, ride along: each program makes the sum of squares for itself.

Legend: K input size, N output features.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.context import Norm
from octavo.kernels.triton.act import gated
from octavo.kernels.triton.common import LAUNCH, let_next_start, pow2, wait_for_inputs

MAX_ROW = 16_384


def fits_one(x: torch.Tensor) -> bool:
    """Whether x is one token, of a type and length that this file is for. Sums in fp32 keep torch's order."""
    return x.dim() == 2 and x.shape[0] == 1 and x.dtype != torch.float32 and x.shape[1] <= MAX_ROW


@triton.jit
def _one_token(
    x_ptr,
    r_ptr,
    g_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    sum_ptr,
    N,
    K,
    stride_w,
    eps,
    FEATURES: tl.constexpr,
    K_PAD: tl.constexpr,
    NORM: tl.constexpr,
    ADD: tl.constexpr,
    BIAS: tl.constexpr,
    ACT: tl.constexpr,
):
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    k = tl.arange(0, K_PAD)
    k_in = k < K
    inside = (feature < N)[:, None] & k_in[None, :]
    w_row = w_ptr + feature.to(tl.int64)[:, None] * stride_w + k[None, :]
    w = tl.load(w_row, mask=inside, other=0.0)
    u = w
    if ACT != "none":
        u = tl.load(w_row + N.to(tl.int64) * stride_w, mask=inside, other=0.0)
    if NORM:
        g = tl.load(g_ptr + k, mask=k_in, other=0.0).to(tl.float32)
    let_next_start()
    wait_for_inputs()
    kind: tl.constexpr = y_ptr.dtype.element_ty
    x = tl.load(x_ptr + k, mask=k_in, other=0.0).to(tl.float32)
    if ADD:
        x = (x + tl.load(r_ptr + k, mask=k_in, other=0.0).to(tl.float32)).to(kind)
        if tl.program_id(0) == 0:
            tl.store(sum_ptr + k, x, mask=k_in)
        x = x.to(tl.float32)
    if NORM:
        x = (x * tl.rsqrt(tl.sum(x * x, axis=0) / K + eps) * g).to(kind).to(tl.float32)
    acc = tl.sum(w.to(tl.float32) * x[None, :], axis=1)
    if BIAS:
        acc += tl.load(b_ptr + feature, mask=feature < N, other=0.0).to(tl.float32)
    if ACT != "none":
        up = tl.sum(u.to(tl.float32) * x[None, :], axis=1)
        if BIAS:
            up += tl.load(b_ptr + N + feature, mask=feature < N, other=0.0).to(tl.float32)
        acc = gated(acc, up, ACT, kind)
    tl.store(y_ptr + feature, acc.to(kind), mask=feature < N)


def one_token_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, norm: Norm | None = None, activation: str = "none"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``act(norm(x + residual) W^T + b)`` for one token: x ``[1, K]``, W ``[N, K]``.

    With an activation W is ``[2 N, K]``, its upper half gated by its lower. Gives ``[1, N]`` and, where there was a
    residual, the sum ``[1, K]``.
    """
    size = x.shape[1]
    features = weight.shape[0] // (1 if activation == "none" else 2)
    y = torch.empty((1, features), dtype=x.dtype, device=x.device)
    residual = norm.residual if norm is not None else None
    total = torch.empty((1, size), dtype=x.dtype, device=x.device) if residual is not None else None
    rows, warps = shape_of_one(features, size, gated=activation != "none")
    _one_token[(triton.cdiv(features, rows),)](
        x,
        residual if residual is not None else x,
        norm.weight if norm is not None else x,
        weight,
        bias if bias is not None else x,
        y,
        total if total is not None else y,
        features,
        size,
        weight.stride(0),
        norm.eps if norm is not None else 0.0,
        FEATURES=rows,
        K_PAD=pow2(size),
        NORM=norm is not None,
        ADD=residual is not None,
        BIAS=bias is not None,
        ACT=activation,
        num_warps=warps,
        **LAUNCH,
    )
    return y, total


def shape_of_one(features: int, size: int, *, gated: bool) -> tuple[int, int]:
    """Weight rows and warps of a program, as measured on an H200 for layers of 0.6B and 8B models."""
    if size <= 1024:
        return (8, 4) if gated else (16, 4) if features >= 4096 else (4, 4)
    if size <= 2048:
        return 1, 4
    if size <= 4096:
        if features <= 2048:
            return (2, 8) if gated else (4, 16)
        return (2, 8) if gated else (1, 8) if features <= 4096 else (4, 8)
    return 1, 8
