"""RMS norm, alone and fused with the residual add (Zhang and Sennrich 2019). One program a token.

Legend: T tokens, E hidden size.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.common import LAUNCH, let_next_start, pow2, wait_for_inputs


@triton.jit
def _rms_norm(x_ptr, w_ptr, y_ptr, stride_x, eps, E: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < E
    w = tl.load(w_ptr + column, mask=inside, other=0.0).to(tl.float32)
    let_next_start()
    wait_for_inputs()
    x = tl.load(x_ptr + token * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / E + eps)
    y = (x * scale * w).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + token * E + column, y, mask=inside)


@triton.jit
def _add_rms_norm(
    x_ptr, r_ptr, w_ptr, y_ptr, sum_ptr, stride_x, stride_part, stride_r, eps,
    E: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < E
    w = tl.load(w_ptr + column, mask=inside, other=0.0).to(tl.float32)
    let_next_start()
    wait_for_inputs()
    x = tl.load(x_ptr + token * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    if PARTS > 1:
        for part in tl.static_range(1, PARTS):
            x += tl.load(x_ptr + part * stride_part + token * stride_x + column, mask=inside, other=0.0)
        x = x.to(sum_ptr.dtype.element_ty).to(tl.float32)
    r = tl.load(r_ptr + token * stride_r + column, mask=inside, other=0.0).to(tl.float32)
    # The sum is rounded to the storage type first, as the unfused pair of operations does.
    total = (x + r).to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + token * E + column, total, mask=inside)
    total = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, axis=0) / E + eps)
    tl.store(y_ptr + token * E + column, (total * scale * w).to(y_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``[T, E], [E] -> [T, E]``."""
    tokens, size = x.shape
    y = torch.empty((tokens, size), dtype=x.dtype, device=x.device)
    if tokens:
        _rms_norm[(tokens,)](x, weight, y, x.stride(0), eps, E=size, BLOCK=pow2(size), num_warps=_warps(size), **LAUNCH)
    return y


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``residual + x`` normed, and the sum: ``[T, E] x 2 -> [T, E] x 2``; x may be fp32 parts ``[S, T, E]``."""
    if residual is None:
        return rms_norm(x, weight, eps), x
    tokens, size = residual.shape
    parts = x.shape[0] if x.dim() > 2 else 1
    y = torch.empty((tokens, size), dtype=residual.dtype, device=x.device)
    total = torch.empty((tokens, size), dtype=residual.dtype, device=x.device)
    if tokens:
        _add_rms_norm[(tokens,)](
            x,
            residual,
            weight,
            y,
            total,
            x.stride(-2),
            x.stride(0),
            residual.stride(0),
            eps,
            E=size,
            BLOCK=pow2(size),
            PARTS=parts,
            num_warps=_warps(size),
            **LAUNCH,
        )
    return y, total


def _warps(size: int) -> int:
    return 4 if size <= 2048 else 8
