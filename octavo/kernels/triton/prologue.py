"""Everything between the QKV projection and attention in one launch: QK norm, rotation, KV write.

One program takes one token and one KV head with the query heads that share it, so even a batch of one
spreads over H_kv multiprocessors.
Legend: T tokens, H heads, G query heads a KV head, D head dim, B block size, N blocks.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.context import AttentionMeta
from octavo.kernels.triton.common import LAUNCH, let_next_start, pow2, wait_for_inputs


@triton.jit
def _norm_rotate(ptr, weight_ptr, head, heads, cos, sin, column, partner, sign, eps, D, NORM: tl.constexpr):
    """Heads ``[G, D]`` at ptr, normed over D and rotated; `partner` is the other column of each rotated pair."""
    inside = (head[:, None] < heads) & (column[None, :] < D)
    x = tl.load(ptr + head[:, None] * D + column[None, :], mask=inside, other=0.0).to(tl.float32)
    other = tl.load(ptr + head[:, None] * D + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
        w = tl.load(weight_ptr + column, mask=column < D, other=0.0).to(tl.float32)
        w_other = tl.load(weight_ptr + partner, mask=column < D, other=0.0).to(tl.float32)
        dtype = ptr.dtype.element_ty
        x = (x * scale * w[None, :]).to(dtype).to(tl.float32)
        other = (other * scale * w_other[None, :]).to(dtype).to(tl.float32)
    return x * cos[None, :] + other * (sign * sin)[None, :]


@triton.jit
def _prologue(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_sin_ptr,
    kv_ptr,
    slots_ptr,
    rope_index_ptr,
    q_out_ptr,
    stride_qkv,
    stride_block,
    stride_half,
    stride_head,
    eps,
    NORM: tl.constexpr,
    ROTARY: tl.constexpr,
    H: tl.constexpr,
    H_KV: tl.constexpr,
    G: tl.constexpr,
    G_PAD: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    B: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    column = tl.arange(0, D_PAD)
    half: tl.constexpr = ROTARY // 2
    low = column < half
    high = (column >= half) & (column < ROTARY)
    partner = tl.where(low, column + half, tl.where(high, column - half, column))
    sign = tl.where(low, -1.0, 1.0)
    let_next_start()
    wait_for_inputs()
    if ROTARY > 0:
        angle = tl.load(rope_index_ptr + token)
        rotated = low | high
        pair = tl.where(low, column, column - half)
        row = cos_sin_ptr + angle * ROTARY + pair
        cos = tl.load(row, mask=rotated, other=1.0)
        sin = tl.load(row + half, mask=rotated, other=0.0)
    else:
        cos = tl.full((D_PAD,), 1.0, tl.float32)
        sin = tl.full((D_PAD,), 0.0, tl.float32)

    base = qkv_ptr + token * stride_qkv
    head = tl.arange(0, G_PAD)
    q = _norm_rotate(base + kv_head * G * D, q_norm_ptr, head, G, cos, sin, column, partner, sign, eps, D, NORM)
    q_out = q_out_ptr + token * H * D + kv_head * G * D + head[:, None] * D + column[None, :]
    q_inside = (head[:, None] < G) & (column[None, :] < D)
    tl.store(q_out, q.to(q_out_ptr.dtype.element_ty), mask=q_inside)

    slot = tl.load(slots_ptr + token)
    one = tl.arange(0, 1)
    k = _norm_rotate(base + (H + kv_head) * D, k_norm_ptr, one, 1, cos, sin, column, partner, sign, eps, D, NORM)
    v = tl.load(base + (H + H_KV + kv_head) * D + column, mask=column < D, other=0.0)
    target = kv_ptr + (slot // B) * stride_block + kv_head * stride_head + (slot % B) * D
    kind = kv_ptr.dtype.element_ty
    tl.store(target + one[:, None] * D + column[None, :], k.to(kind), mask=(one[:, None] < 1) & (column[None, :] < D))
    tl.store(target + stride_half + column, v.to(kind), mask=column < D)


def qkv_prologue(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos_sin: torch.Tensor | None,
    rope_index: torch.Tensor | None,
    kv: torch.Tensor,
    meta: AttentionMeta,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> torch.Tensor:
    """As `QkvPrologue` in kernels/ops: ``[T, (H + 2 H_kv) D] -> [T, H, D]``."""
    tokens = qkv.shape[0]
    q = torch.empty((tokens, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if not tokens:
        return q
    group = num_heads // num_kv_heads
    unused = qkv  # a pointer the kernel never follows
    _prologue[(tokens, num_kv_heads)](
        qkv,
        q_norm if q_norm is not None else unused,
        k_norm if k_norm is not None else unused,
        cos_sin if cos_sin is not None else unused,
        kv,
        meta.slots,
        rope_index if rope_index is not None else unused,
        q,
        qkv.stride(0),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        eps,
        NORM=q_norm is not None,
        ROTARY=cos_sin.shape[1] if cos_sin is not None else 0,
        H=num_heads,
        H_KV=num_kv_heads,
        G=group,
        G_PAD=pow2(group),
        D=head_dim,
        D_PAD=pow2(head_dim),
        B=meta.block_size,
        num_warps=1 if group <= 2 else 2 if group <= 4 else 4,
        **LAUNCH,
    )
    return q
