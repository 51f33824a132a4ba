"""Linear layers for few tokens, where the time is that of reading the weights once and of starting kernels.

A program holds whole rows of the weight, for all of K, in registers: the loads are under way before it waits for the
kernel before (programmatic dependent launch). The gated activation of the output rides along. One token is a sum of
products, and there the residual add and the RMS norm before it ride along too: each program makes the sum of squares
for itself. More tokens go through the tensor cores with the weight as the tall side, K split over warps.

Legend: T tokens, K input size, N output features, S parts of K.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from octavo.kernels.triton.act import act_mul, activate
from octavo.kernels.triton.common import LAUNCH, let_next_start, pow2, wait_for_inputs
from octavo.kernels.triton.norm import add_rms_norm, rms_norm

MAX_TOKENS = 16
MAX_ROW_OF_ONE = 16_384
MAX_STRIP = 2048  # of K, that a program holds at once
MAX_ROW_OF_FEW = 3072
MAX_FEATURES = 8192  # taller matrices keep cuBLAS busy enough
_PART = 256


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``[T, E] x [O, E] -> [T, O]``: this file's kernels where they win, cuBLAS elsewhere."""
    if _is_one(x):
        return one_token_linear(x, weight, bias)[0]
    if _fits_few(x, weight, gated=False):
        return few_token_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def normed_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `NormedLinear` in kernels/ops: one kernel for one token, two for a few, three for more."""
    if _is_one(x):
        y, total = one_token_linear(x, weight, bias, Norm(norm, eps, residual), activation or "none")
        return y, x if total is None else total
    if residual is None:
        normed, total = rms_norm(x, norm, eps), x
    else:
        normed, total = add_rms_norm(x, residual, norm, eps)
    if activation is None:
        return linear(normed, weight, bias), total
    if _fits_few(x, weight, gated=True):
        return few_token_linear(normed, weight, bias, activation), total
    return act_mul(F.linear(normed, weight, bias), activation), total


@dataclass(frozen=True, slots=True)
class Norm:
    """``rms_norm(x + residual)`` before the product; residual ``[T, K]`` or None, weight ``[K]``."""

    weight: torch.Tensor
    eps: float
    residual: torch.Tensor | None


@triton.jit
def gated(acc, acc_up, ACT: tl.constexpr, kind: tl.constexpr):
    """Rounded to the storage type where the unfused operations would round."""
    gate = acc.to(kind).to(tl.float32)
    up = acc_up.to(kind).to(tl.float32)
    return activate(gate, ACT).to(kind).to(tl.float32) * up


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


@triton.jit(do_not_specialize=["T"])
def _few_tokens(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    T,
    N,
    K,
    stride_x,
    stride_w,
    FEATURES: tl.constexpr,
    TOKENS: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    TWICE: tl.constexpr,
    BIAS: tl.constexpr,
    ACT: tl.constexpr,
):
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    token = tl.arange(0, TOKENS)
    live = token < T
    k = tl.arange(0, PARTS)[:, None] * PART + tl.arange(0, PART)[None, :]
    f_in = (feature < N)[None, :, None]
    w_row = w_ptr + feature.to(tl.int64)[None, :, None] * stride_w + k[:, None, :]
    w = tl.load(w_row, mask=f_in & (k < K)[:, None, :], other=0.0)
    second = w
    if TWICE:
        second = tl.load(w_row + PARTS * PART, mask=f_in & (k + PARTS * PART < K)[:, None, :], other=0.0)
    if ACT != "none":
        second = tl.load(w_row + N.to(tl.int64) * stride_w, mask=f_in & (k < K)[:, None, :], other=0.0)
    let_next_start()
    wait_for_inputs()
    kind: tl.constexpr = y_ptr.dtype.element_ty
    x_row = x_ptr + token[None, None, :] * stride_x + k[:, :, None]
    x = tl.load(x_row, mask=(k < K)[:, :, None] & live[None, None, :], other=0.0)
    acc = tl.sum(tl.dot(w, x), axis=0)
    if TWICE:
        x = tl.load(x_row + PARTS * PART, mask=(k + PARTS * PART < K)[:, :, None] & live[None, None, :], other=0.0)
        acc += tl.sum(tl.dot(second, x), axis=0)
    if BIAS:
        acc += tl.load(b_ptr + feature, mask=feature < N, other=0.0).to(tl.float32)[:, None]
    if ACT != "none":
        up = tl.sum(tl.dot(second, x), axis=0)
        if BIAS:
            up += tl.load(b_ptr + N + feature, mask=feature < N, other=0.0).to(tl.float32)[:, None]
        acc = gated(acc, up, ACT, kind)
    out = y_ptr + token[None, :].to(tl.int64) * N + feature[:, None]
    tl.store(out, acc.to(kind), mask=(feature < N)[:, None] & live[None, :])


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


def few_token_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str = "none"
) -> torch.Tensor:
    """``act(x W^T + b)`` for at most `MAX_TOKENS` tokens and rows that fit a program: ``[T, K] -> [T, N]``."""
    tokens, size = x.shape
    gated = activation != "none"
    features = weight.shape[0] // (2 if gated else 1)
    y = torch.empty((tokens, features), dtype=x.dtype, device=x.device)
    twice = size > MAX_STRIP
    parts = pow2(triton.cdiv(min(size, MAX_STRIP), _PART))
    _few_tokens[(triton.cdiv(features, 16),)](
        x,
        weight,
        bias if bias is not None else x,
        y,
        tokens,
        features,
        size,
        x.stride(0),
        weight.stride(0),
        FEATURES=16,
        TOKENS=16,
        PART=_PART,
        PARTS=parts,
        TWICE=twice,
        BIAS=bias is not None,
        ACT=activation,
        num_warps=parts,
        **LAUNCH,
    )
    return y


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


def _fits_few(x: torch.Tensor, weight: torch.Tensor, *, gated: bool) -> bool:
    """Whether few tokens meet a matrix whose rows a program can hold, two strips of them if there is no gate."""
    tokens, size = x.shape
    if x.dtype == torch.float32 or not 1 < tokens <= MAX_TOKENS:
        return False
    return size <= (MAX_STRIP if gated else MAX_ROW_OF_FEW) and weight.shape[0] <= MAX_FEATURES


def _is_one(x: torch.Tensor) -> bool:
    return x.shape[0] == 1 and x.dtype != torch.float32 and x.shape[1] <= MAX_ROW_OF_ONE
