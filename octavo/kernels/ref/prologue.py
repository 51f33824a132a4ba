"""What happens between the QKV product and attention: QK norm, rotation, the write into the cache."""

import torch
from torch import Tensor

from octavo.kernels.context import AttentionMeta, Projected
from octavo.kernels.ref.norm import rms_norm
from octavo.kernels.ref.rope import rotate


def qkv_prologue(projected: Projected, kv: Tensor, meta: AttentionMeta) -> Tensor:
    """See kernels/ops.QkvPrologue: gives q ``[T, H, D]``, leaves K and V in the cache."""
    p, num_heads = projected, projected.num_heads
    heads = p.qkv.view(-1, num_heads + 2 * p.num_kv_heads, p.head_dim)
    turning = heads[:, : num_heads + p.num_kv_heads]  # q and k
    value = heads[:, num_heads + p.num_kv_heads :]
    if p.q_norm is not None and p.k_norm is not None:
        query = rms_norm(turning[:, :num_heads], p.q_norm, p.eps)
        turning = torch.cat((query, rms_norm(turning[:, num_heads:], p.k_norm, p.eps)), dim=1)
    if p.cos_sin is not None and p.rope_index is not None:
        turning = rotate(turning, p.cos_sin.index_select(0, p.rope_index))
    write_kv(kv, turning[:, num_heads:], value, meta)
    return turning[:, :num_heads]


def write_kv(kv: Tensor, key: Tensor, value: Tensor, meta: AttentionMeta) -> None:
    """Put ``[T, H_kv, D]`` keys and values at the step's slots of ``[N, 2, H_kv, B, D]``."""
    block = meta.slots // meta.block_size
    offset = meta.slots % meta.block_size
    by_slot = kv.transpose(2, 3)  # [N, 2, B, H_kv, D]
    by_slot[:, 0].index_put_((block, offset), key.to(kv.dtype))
    by_slot[:, 1].index_put_((block, offset), value.to(kv.dtype))
