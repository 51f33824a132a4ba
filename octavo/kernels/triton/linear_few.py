"""Linear layers for few tokens and short rows: as for one token, but through the tensor cores.

A program holds whole rows of the weight in registers, loaded before it waits for the kernel before; the weight is the
tall side, K split over warps. The gated activation of the output rides along.

Legend: T tokens, K input size, N output features.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.act import gated
from octavo.kernels.triton.common import LAUNCH, let_next_start, pow2, wait_for_inputs

MAX_TOKENS = 16
MAX_STRIP = 2048  # of K, that a program holds at once
MAX_ROW = 3072
MAX_FEATURES = 8192  # taller matrices keep cuBLAS busy enough
_PART = 256


def fits_few(x: torch.Tensor, weight: torch.Tensor, *, gate: bool) -> bool:
    """Whether few tokens meet a matrix whose rows a program can hold, two strips of them if there is no gate."""
    tokens, size = x.shape
    if x.dtype == torch.float32 or not 1 < tokens <= MAX_TOKENS:
        return False
    return size <= (MAX_STRIP if gate else MAX_ROW) and weight.shape[0] <= MAX_FEATURES


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


def few_token_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str = "none"
) -> torch.Tensor:
    """``act(x W^T + b)`` for at most `MAX_TOKENS` tokens and rows that fit a program: ``[T, K] -> [T, N]``."""
    tokens, size = x.shape
    gate = activation != "none"
    features = weight.shape[0] // (2 if gate else 1)
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
