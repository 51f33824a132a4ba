"""Linear layers for few tokens, where the time is that of reading the weights once and of starting kernels.

A program holds whole rows of the weight, for all of K, in registers: the loads are under way before it waits for the
kernel before (programmatic dependent launch), and nothing needs a second pass. What stands before and after the
product rides along: the residual add and RMS norm of the input, whose sum of squares each program makes for itself,
and the gated activation of the output. One token is a sum of products; more go through the tensor cores with the
weight as the tall side, K split over warps.

Legend: T tokens, K input size, N output features, S parts of K.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from octavo.kernels.triton.act import act_mul
from octavo.kernels.triton.common import LAUNCH, let_next_start, pow2, wait_for_inputs
from octavo.kernels.triton.norm import add_rms_norm, rms_norm

MAX_TOKENS = 16
MAX_ROW_OF_ONE = 16_384
MAX_ROW_OF_FEW = 2048  # longer rows of K do not fit a program's registers and shared memory
MAX_FEATURES_OF_FEW = 32_768  # taller matrices keep cuBLAS busy enough


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``[T, E] x [O, E] -> [T, O]``: this file's kernels where they win, cuBLAS elsewhere."""
    if _fits(x, weight):
        return few_token_linear(x, weight, bias)[0]
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
    """As `NormedLinear` in kernels/ops: one kernel for few tokens, three for more."""
    if _fits(x, weight):
        y, total = few_token_linear(x, weight, bias, Norm(norm, eps, residual), activation or "none")
        return y, x if total is None else total
    if residual is None:
        normed, total = rms_norm(x, norm, eps), x
    else:
        normed, total = add_rms_norm(x, residual, norm, eps)
    y = F.linear(normed, weight, bias)
    return (y if activation is None else act_mul(y, activation)), total


@dataclass(frozen=True, slots=True)
class Norm:
    """``rms_norm(x + residual)`` before the product; residual ``[T, K]`` or None, weight ``[K]``."""

    weight: torch.Tensor
    eps: float
    residual: torch.Tensor | None


@triton.jit
def _gate(gate, KIND: tl.constexpr):
    if KIND == "silu":
        return gate * tl.sigmoid(gate)
    elif KIND == "gelu_tanh":
        return gate * tl.sigmoid(2.0 * 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))
    else:
        return 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))


@triton.jit
def _gated(acc, acc_up, ACT: tl.constexpr, kind: tl.constexpr):
    """Rounded to the storage type where the unfused operations would round."""
    gate = acc.to(kind).to(tl.float32)
    up = acc_up.to(kind).to(tl.float32)
    return _gate(gate, ACT).to(kind).to(tl.float32) * up


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
        acc = _gated(acc, up, ACT, kind)
    tl.store(y_ptr + feature, acc.to(kind), mask=feature < N)


@triton.jit(do_not_specialize=["T"])
def _few_tokens(
    x_ptr,
    r_ptr,
    g_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    sum_ptr,
    T,
    N,
    K,
    stride_x,
    stride_r,
    stride_w,
    eps,
    FEATURES: tl.constexpr,
    TOKENS: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    NORM: tl.constexpr,
    ADD: tl.constexpr,
    BIAS: tl.constexpr,
    ACT: tl.constexpr,
):
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    token = tl.arange(0, TOKENS)
    live = token < T
    k = tl.arange(0, PARTS)[:, None] * PART + tl.arange(0, PART)[None, :]
    k_in = k < K
    inside = (feature < N)[None, :, None] & k_in[:, None, :]
    w_row = w_ptr + feature.to(tl.int64)[None, :, None] * stride_w + k[:, None, :]
    w = tl.load(w_row, mask=inside, other=0.0)
    u = w
    if ACT != "none":
        u = tl.load(w_row + N.to(tl.int64) * stride_w, mask=inside, other=0.0)
    let_next_start()
    wait_for_inputs()
    kind: tl.constexpr = y_ptr.dtype.element_ty
    x_in = k_in[:, :, None] & live[None, None, :]
    x = tl.load(x_ptr + token[None, None, :] * stride_x + k[:, :, None], mask=x_in, other=0.0)
    if ADD:
        r = tl.load(r_ptr + token[None, None, :] * stride_r + k[:, :, None], mask=x_in, other=0.0)
        x = (x.to(tl.float32) + r.to(tl.float32)).to(kind)
        if tl.program_id(0) == 0:
            tl.store(sum_ptr + token[None, None, :] * K + k[:, :, None], x, mask=x_in)
    if NORM:
        wide = x.to(tl.float32)
        scale = tl.rsqrt(tl.sum(tl.sum(wide * wide, axis=1), axis=0) / K + eps)
        g = tl.load(g_ptr + k, mask=k_in, other=0.0).to(tl.float32)
        x = (wide * scale[None, None, :] * g[:, :, None]).to(kind)
    acc = tl.sum(tl.dot(w, x), axis=0)
    if BIAS:
        acc += tl.load(b_ptr + feature, mask=feature < N, other=0.0).to(tl.float32)[:, None]
    if ACT != "none":
        up = tl.sum(tl.dot(u, x), axis=0)
        if BIAS:
            up += tl.load(b_ptr + N + feature, mask=feature < N, other=0.0).to(tl.float32)[:, None]
        acc = _gated(acc, up, ACT, kind)
    out = y_ptr + token[None, :].to(tl.int64) * N + feature[:, None]
    tl.store(out, acc.to(kind), mask=(feature < N)[:, None] & live[None, :])


def few_token_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, norm: Norm | None = None, activation: str = "none"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``act(norm(x + residual) W^T + b)`` for at most `MAX_TOKENS` tokens: x ``[T, K]``, W ``[N, K]``.

    With an activation W is ``[2 N, K]``, its upper half gated by its lower. Gives ``[T, N]`` and, where there was a
    residual, the sum ``[T, K]``.
    """
    tokens, size = x.shape
    features = weight.shape[0] // (1 if activation == "none" else 2)
    y = torch.empty((tokens, features), dtype=x.dtype, device=x.device)
    residual = norm.residual if norm is not None else None
    total = torch.empty((tokens, size), dtype=x.dtype, device=x.device) if residual is not None else None
    pointers = (
        x,
        residual if residual is not None else x,
        norm.weight if norm is not None else x,
        weight,
        bias if bias is not None else x,
        y,
        total if total is not None else y,
    )
    flags = {"NORM": norm is not None, "ADD": residual is not None, "BIAS": bias is not None, "ACT": activation}
    eps = norm.eps if norm is not None else 0.0
    if tokens == 1:
        rows = _rows_of_one(features, size)
        _one_token[(triton.cdiv(features, rows),)](
            *pointers,
            features,
            size,
            weight.stride(0),
            eps,
            FEATURES=rows,
            K_PAD=pow2(size),
            **flags,
            num_warps=8 if size <= 4096 else 16,
            **LAUNCH,
        )
        return y, total
    parts = max(1, pow2(triton.cdiv(size, 256)))
    _few_tokens[(triton.cdiv(features, 16),)](
        *pointers,
        tokens,
        features,
        size,
        x.stride(0),
        residual.stride(0) if residual is not None else 0,
        weight.stride(0),
        eps,
        FEATURES=16,
        TOKENS=16,
        PART=256,
        PARTS=parts,
        **flags,
        num_warps=min(16, parts),
        **LAUNCH,
    )
    return y, total


def _rows_of_one(features: int, size: int) -> int:
    """Weight rows a program: few enough to spread over the device, 64 KiB of them at most."""
    rows = 8 if features >= 4096 else 4
    return max(1, min(rows, (1 << 15) // pow2(size)))


def _fits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether few tokens meet a matrix whose rows a program can hold."""
    tokens, size = x.shape
    if x.dtype == torch.float32 or tokens == 0:
        return False  # exactness first: cuBLAS adds in fp32 throughout
    if tokens == 1:
        return size <= MAX_ROW_OF_ONE
    return tokens <= MAX_TOKENS and size <= MAX_ROW_OF_FEW and weight.shape[0] <= MAX_FEATURES_OF_FEW
