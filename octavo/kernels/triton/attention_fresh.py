"""Long prompts computed whole: all they see lies in this step, so cuDNN's dense attention serves, at twice the speed.

The prologue leaves keys and values of such a row side by side too, in a buffer that the step's layers share. cuDNN
takes tens of milliseconds of host time to plan for a length it has not seen, so rows are padded to a multiple of
`STEP`: behind them are zeros as keys, which no query of theirs sees, and whatever stands there as queries, whose
results are dropped.
Legend: T tokens, H heads, D head dim, S tokens of a row with its padding.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from octavo.kernels.context import AttentionMeta

LEAST = 1024  # shorter prompts gain too little for a launch of their own
STEP = 512
_KEY = "triton:fresh"
_ALONE = "triton:fresh alone"


@dataclass(frozen=True, slots=True)
class FreshRow:
    """A row without a past: its place among the rows, its first token in T, its length, and where the layer at hand
    has its keys and values, ``[2, S, H_kv, D]``."""

    index: int
    start: int
    length: int
    own: Tensor


def fresh_rows(meta: AttentionMeta, qkv: Tensor, num_kv_heads: int, head_dim: int) -> list[FreshRow]:
    """The rows of a step that this way is for; their buffers are made when the first layer asks."""
    known = meta.scratch.get(_KEY)
    if known is None:
        known = meta.scratch[_KEY] = _found(meta, qkv, num_kv_heads, head_dim) if _able(qkv, head_dim) else []
    assert isinstance(known, list)
    return known


def prepare_alone(meta: AttentionMeta, tokens: int) -> None:
    """Tell ahead that the step will be one such row, with its padding of so many tokens."""
    meta.scratch[_ALONE] = tokens


def prepared_rows(meta: AttentionMeta) -> list[FreshRow]:
    """Those of `fresh_rows`, if the prologue has asked for them."""
    known = meta.scratch.get(_KEY, [])
    assert isinstance(known, list)
    return known


def query_places(rows: list[FreshRow], tokens: int) -> int:
    """Tokens for which the queries need room: the padding of the last row may reach beyond T."""
    return max([tokens, *(row.start + row.own.shape[1] for row in rows)])


def fresh_attention(q: Tensor, row: FreshRow, scale: float) -> Tensor:
    """Causal attention of one fresh row, ``[length, H, D]``. q: this step's ``[T, H, D]``, with `query_places`."""
    places, line = row.own.shape[1], q.stride(0)
    shape, strides = (1, places, *q.shape[1:]), (places * line, *q.stride())
    query = q.as_strided(shape, strides, q.storage_offset() + row.start * line).transpose(1, 2)
    key, value = row.own.transpose(1, 2).split(1)
    result = dense_attention(query, key, value, scale)
    return result[0].transpose(0, 1)[: row.length]


def dense_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal ``[1, H, S, D], [1, H_kv, S, D] x 2 -> [1, H, S, D]``, of the same layout in memory as the queries."""
    if query.is_meta:  # a rehearsal
        return query.new_empty(query.shape)
    if prefers_cudnn():
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, value, None, False, 0.0, True, False, scale=scale
        )
    else:
        found = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True, False, scale=scale)
    result: Tensor = found[0]
    return result


@cache
def prefers_cudnn() -> bool:
    """cuDNN's kernels are the faster ones from Hopper on; before it torch's own FlashAttention is as fast."""
    return torch.cuda.get_device_capability() >= (9, 0) and torch.backends.cudnn.is_available()


def suits(head_dim: int, dtype_bytes: int) -> bool:
    """Whether dense attention has kernels for such heads."""
    return dtype_bytes == 2 and head_dim in (64, 128)


def _able(qkv: Tensor, head_dim: int) -> bool:
    return qkv.device.type != "cpu" and suits(head_dim, qkv.dtype.itemsize)


def _found(meta: AttentionMeta, qkv: Tensor, num_kv_heads: int, head_dim: int) -> list[FreshRow]:
    alone = meta.scratch.get(_ALONE)
    if isinstance(alone, int):
        return [FreshRow(0, 0, alone, qkv.new_empty((2, alone, num_kv_heads, head_dim)))]
    query_lens = np.asarray(meta.query_lens, dtype=np.int64)
    seq_lens = np.asarray(meta.seq_lens_host, dtype=np.int64)
    ends = np.cumsum(query_lens)
    rows = []
    for index in np.flatnonzero((query_lens == seq_lens) & (query_lens >= LEAST)).tolist():
        length = int(query_lens[index])
        own = qkv.new_empty((2, -(-length // STEP) * STEP, num_kv_heads, head_dim))
        own[:, length:].zero_()
        rows.append(FreshRow(index, int(ends[index]) - length, length, own))
    return rows
