"""Long prompts computed whole: all they see lies in this step, so cuDNN's dense attention serves, at twice the speed.

Keys and values are gathered from the cache, where the prologue has just put them: little beside the product.
Legend: T tokens, H heads, D head dim, B block size, N blocks, S tokens of the prompt.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from octavo.kernels.context import AttentionMeta

LEAST = 1024  # shorter prompts gain too little for a launch of their own


@dataclass(frozen=True, slots=True)
class FreshRow:
    """A row without a past: its place among the rows, its first token in T, its length."""

    index: int
    start: int
    length: int


def fresh_rows(q: torch.Tensor, query_lens: npt.NDArray[np.int64], seq_lens: npt.NDArray[np.int64]) -> list[FreshRow]:
    """The rows of a step that this way is for."""
    if q.device.type != "cuda" or q.dtype == torch.float32 or q.shape[2] not in (64, 128):
        return []
    ends = np.cumsum(query_lens)
    found = np.flatnonzero((query_lens == seq_lens) & (query_lens >= LEAST))
    return [FreshRow(int(i), int(ends[i] - query_lens[i]), int(query_lens[i])) for i in found]


def fresh_attention(
    q: torch.Tensor, kv: torch.Tensor, meta: AttentionMeta, row: FreshRow, out: torch.Tensor, scale: float
) -> None:
    """Causal attention of one fresh row: its part of q and out ``[T, H, D]``, kv ``[N, 2, H_kv, B, D]``."""
    tokens = slice(row.start, row.start + row.length)
    blocks = meta.block_table[row.index, : -(-row.length // meta.block_size)]
    kv_heads, dim = kv.shape[2], kv.shape[4]
    # [blocks, 2, H_kv, B, D] -> two of [1, H_kv, S, D]
    gathered = kv.index_select(0, blocks).permute(1, 2, 0, 3, 4).reshape(2, kv_heads, -1, dim)
    key, value = gathered[0:1, :, : row.length], gathered[1:2, :, : row.length]
    query = q[tokens].transpose(0, 1).unsqueeze(0)
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]):
        result = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    out[tokens] = result[0].transpose(0, 1)
