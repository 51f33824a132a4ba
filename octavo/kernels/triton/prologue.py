"""Everything between the QKV projection and attention in one launch: QK norm, rotation, KV write.

Few tokens: a program takes one token and one KV head with the query heads that share it, so even a batch of one
spreads over H_kv multiprocessors. Many tokens: a program takes a token whole, which starts fewer programs.
Rows that attention computes without the cache (attention_fresh) have a launch each, which leaves their keys and values
side by side as well.
Legend: T tokens, H heads, G query heads a KV head, D head dim, B block size, N blocks.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.context import AttentionMeta, Projected
from octavo.kernels.triton.attention_fresh import fresh_rows, query_places
from octavo.kernels.triton.common import LAUNCH, let_next_start, pow2, wait_for_inputs

MANY = 512  # tokens from which a program takes all heads of one


@triton.jit
def angles(cos_sin_ptr, rope_index_ptr, column, D_PAD: tl.constexpr, ROTARY: tl.constexpr):
    """Of one token: cos and sin of each column ``[D_PAD]``, the other column of its pair, and the sign of sin."""
    half: tl.constexpr = ROTARY // 2
    low = column < half
    high = (column >= half) & (column < ROTARY)
    partner = tl.where(low, column + half, tl.where(high, column - half, column))
    sign = tl.where(low, -1.0, 1.0)
    if ROTARY > 0:
        rotated = low | high
        pair = tl.where(low, column, column - half)
        row = cos_sin_ptr + tl.load(rope_index_ptr) * ROTARY + pair
        cos = tl.load(row, mask=rotated, other=1.0)
        sin = tl.load(row + half, mask=rotated, other=0.0)
    else:
        cos = tl.full((D_PAD,), 1.0, tl.float32)
        sin = tl.full((D_PAD,), 0.0, tl.float32)
    return cos, sin, partner, sign


@triton.jit
def norm_rotate(ptr, w, w_other, head, heads, cos, sin, partner, sign, column, eps, D, NORM: tl.constexpr):
    """Heads ``[G, D]`` at ptr, normed over D with weights w ``[D]``, and rotated; fp32."""
    inside = (head[:, None] < heads) & (column[None, :] < D)
    x = tl.load(ptr + head[:, None] * D + column[None, :], mask=inside, other=0.0).to(tl.float32)
    other = tl.load(ptr + head[:, None] * D + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
        dtype = ptr.dtype.element_ty
        x = (x * scale * w[None, :]).to(dtype).to(tl.float32)
        other = (other * scale * w_other[None, :]).to(dtype).to(tl.float32)
    return x * cos[None, :] + other * (sign * sin)[None, :]


@triton.jit
def weights(ptr, column, partner, D, NORM: tl.constexpr):
    """A norm's weight of each column ``[D_PAD]`` and of its partner; fp32."""
    if NORM:
        w = tl.load(ptr + column, mask=column < D, other=0.0).to(tl.float32)
        w_other = tl.load(ptr + partner, mask=column < D, other=0.0).to(tl.float32)
    else:
        w = tl.full(column.shape, 1.0, tl.float32)
        w_other = w
    return w, w_other


# One number more before a row, and the pointers behind it are aligned otherwise: no reason to compile anew.
@triton.jit(do_not_specialize_on_alignment=["slots_ptr", "rope_index_ptr"])
def _prologue(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_sin_ptr,
    kv_ptr,
    slots_ptr,
    rope_index_ptr,
    q_out_ptr,
    own_ptr,
    stride_qkv,
    stride_block,
    stride_half,
    stride_head,
    stride_own,
    eps,
    NORM: tl.constexpr,
    ROTARY: tl.constexpr,
    H: tl.constexpr,
    H_KV: tl.constexpr,
    MINE: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    B: tl.constexpr,
    Q_PAD: tl.constexpr,
    KV_PAD: tl.constexpr,
    OWN: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * MINE  # of the KV heads
    column = tl.arange(0, D_PAD)
    let_next_start()
    cos, sin, partner, sign = angles(cos_sin_ptr, rope_index_ptr + token, column, D_PAD, ROTARY)
    slot = tl.load(slots_ptr + token)
    q_w, q_w_other = weights(q_norm_ptr, column, partner, D, NORM)
    k_w, k_w_other = weights(k_norm_ptr, column, partner, D, NORM)
    wait_for_inputs()
    base = qkv_ptr + token * stride_qkv
    head = tl.arange(0, Q_PAD)
    mine: tl.constexpr = MINE * G
    q = norm_rotate(base + first * G * D, q_w, q_w_other, head, mine, cos, sin, partner, sign, column, eps, D, NORM)
    q_out = q_out_ptr + token * H * D + first * G * D + head[:, None] * D + column[None, :]
    q_inside = (head[:, None] < mine) & (column[None, :] < D)
    tl.store(q_out, q.to(q_out_ptr.dtype.element_ty), mask=q_inside)

    head = tl.arange(0, KV_PAD)
    inside = (head[:, None] < MINE) & (column[None, :] < D)
    k = norm_rotate(base + (H + first) * D, k_w, k_w_other, head, MINE, cos, sin, partner, sign, column, eps, D, NORM)
    v = tl.load(base + (H + H_KV + first + head[:, None]) * D + column[None, :], mask=inside, other=0.0)
    target = kv_ptr + (slot // B) * stride_block + (first + head[:, None]) * stride_head + (slot % B) * D
    kind = kv_ptr.dtype.element_ty
    tl.store(target + column[None, :], k.to(kind), mask=inside)
    tl.store(target + stride_half + column[None, :], v.to(kind), mask=inside)
    if OWN:
        own = own_ptr + (token * H_KV + first + head[:, None]) * D + column[None, :]
        tl.store(own, k.to(own_ptr.dtype.element_ty), mask=inside)
        tl.store(own + stride_own, v, mask=inside)


def qkv_prologue(projected: Projected, kv: torch.Tensor, meta: AttentionMeta) -> torch.Tensor:
    """As `QkvPrologue` in kernels/ops: ``[T, (H + 2 H_kv) D] -> [T, H, D]``."""
    p, tokens = projected, projected.qkv.shape[0]
    fresh = fresh_rows(meta, p.qkv, p.num_kv_heads, p.head_dim)
    places = query_places(fresh, tokens)
    q = torch.empty((places, p.num_heads, p.head_dim), dtype=p.qkv.dtype, device=p.qkv.device)
    done = 0
    for row in fresh:
        _launch(p, kv, meta, q, done, row.start, None)
        done = row.start + row.length
        _launch(p, kv, meta, q, row.start, done, row.own)
    _launch(p, kv, meta, q, done, tokens, None)
    return q[:tokens]


def _launch(
    p: Projected,
    kv: torch.Tensor,
    meta: AttentionMeta,
    q: torch.Tensor,
    begin: int,
    end: int,
    own: torch.Tensor | None,
) -> None:
    """Tokens ``begin .. end`` of T; own ``[2, S, H_kv, D]``: where their keys and values go as well."""
    if begin == end:
        return
    qkv, q_norm, k_norm, cos_sin, rope_index = operands(p)
    group = p.num_heads // p.num_kv_heads
    mine = p.num_kv_heads if end - begin >= MANY else 1
    _prologue[(end - begin, p.num_kv_heads // mine)](
        qkv[begin:],
        q_norm,
        k_norm,
        cos_sin,
        kv,
        meta.slots[begin:],
        rope_index[begin:],
        q[begin:],
        q if own is None else own,
        qkv.stride(0),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        0 if own is None else own.stride(0),
        p.eps,
        NORM=p.q_norm is not None,
        ROTARY=rotary(p),
        H=p.num_heads,
        H_KV=p.num_kv_heads,
        MINE=mine,
        G=group,
        D=p.head_dim,
        D_PAD=pow2(p.head_dim),
        B=meta.block_size,
        Q_PAD=pow2(group * mine),
        KV_PAD=pow2(mine),
        OWN=own is not None,
        num_warps=1 if group * mine <= 2 else 2 if group * mine <= 4 else 4,
        **LAUNCH,
    )


def operands(projected: Projected) -> list[torch.Tensor]:
    """qkv, the two norms, cos_sin and rope_index; qkv stands in for one that is None, which no kernel follows."""
    p = projected
    return [p.qkv, *(p.qkv if each is None else each for each in (p.q_norm, p.k_norm, p.cos_sin, p.rope_index))]


def rotary(projected: Projected) -> int:
    """Dims of a head that are rotated."""
    return 0 if projected.cos_sin is None else projected.cos_sin.shape[1]
