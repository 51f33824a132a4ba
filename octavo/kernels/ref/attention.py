"""Paged attention in plain torch.

Rows with one query (decode) go together: their blocks are gathered into one list without padding, each block meets
its row's query, and the parts are summed a row with the running-maximum softmax of flash attention (Dao et al. 2022).
Rows with more queries (prefill) go one by one, in tiles of queries, through torch's fused attention.

Blocks behind a sliding window are not read. A slot that no token of the row has written may hold anything, a NaN too:
scores there are replaced, and values there are set to zero, before any sum meets them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo.kernels.context import AttentionMeta

_TILE = 256  # queries of one row that meet their keys at once
# Cached tokens gathered at once over decode rows: on a CPU few enough that they stay in its cache.
_GATHER_TOKENS = {"cpu": 2048, "cuda": 65_536}


def paged_attention(
    q: Tensor, kv: Tensor, meta: AttentionMeta, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """See kernels/ops.PagedAttention: ``[T, H, D] -> [T, H, D]``."""
    plan = _plan(meta, window, q.device)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for batch in plan.decode:
        out.index_copy_(0, batch.tokens, _decode(q.index_select(0, batch.tokens), kv, batch, scale, softcap))
    for row in plan.prefill:
        out[row.start : row.stop] = _prefill(q[row.start : row.stop], kv, meta, row, scale, window, softcap)
    if plan.num_tokens < q.shape[0]:
        out[plan.num_tokens :].zero_()  # padding of the step
    return out


@dataclass(slots=True)
class _DecodeBatch:
    """Some rows of one query each, with the blocks they see: M rows, G blocks over all of them."""

    tokens: Tensor  # [M], places in T
    blocks: Tensor  # [G], physical
    row: Tensor  # [G], which of the M rows
    seen: Tensor  # [G, B] bool
    edges: Tensor  # blocks (indexes into G) that are not wholly seen
    edge_hidden: Tensor  # [edges, 1, B, 1] bool


@dataclass(slots=True)
class _PrefillRow:
    index: int
    start: int  # tokens in T
    stop: int
    seq_len: int


@dataclass(slots=True)
class _Plan:
    decode: list[_DecodeBatch]
    prefill: list[_PrefillRow]
    num_tokens: int


def _plan(meta: AttentionMeta, window: int | None, device: torch.device) -> _Plan:
    """The step's rows sorted into kinds, once a step for all layers of a group."""
    key = f"reference:{window}"
    plan = meta.scratch.get(key)
    if isinstance(plan, _Plan):
        return plan
    plan = _Plan([], [], sum(meta.query_lens))
    waiting: list[tuple[int, int, int, int]] = []  # row, token, first block, length
    limit = _GATHER_TOKENS.get(device.type, 65_536)
    gathered = start = 0
    for row, (query_len, seq_len) in enumerate(zip(meta.query_lens, meta.seq_lens_host, strict=True)):
        if query_len == 1:
            first = _first_block(seq_len - 1, window, meta.block_size)
            size = seq_len - first * meta.block_size
            if waiting and gathered + size > limit:
                plan.decode.append(_decode_batch(waiting, meta, window, device))
                waiting, gathered = [], 0
            waiting.append((row, start, first, seq_len))
            gathered += size
        elif query_len > 1:
            plan.prefill.append(_PrefillRow(row, start, start + query_len, seq_len))
        start += query_len
    if waiting:
        plan.decode.append(_decode_batch(waiting, meta, window, device))
    meta.scratch[key] = plan
    return plan


def _first_block(position: int, window: int | None, block_size: int) -> int:
    """First block that a query at this position sees into."""
    return 0 if window is None else max(0, position + 1 - window) // block_size


def _decode_batch(
    rows: list[tuple[int, int, int, int]], meta: AttentionMeta, window: int | None, device: torch.device
) -> _DecodeBatch:
    """Index tensors are made on the host, from host numbers; only the block ids themselves come from the device."""
    size = meta.block_size
    row, token, first, length = torch.tensor(rows, dtype=torch.int64).unbind(1)
    count = (length + size - 1) // size - first
    owner = torch.repeat_interleave(torch.arange(len(rows)), count)
    place = torch.arange(owner.numel()) - (count.cumsum(0) - count)[owner] + first[owner]
    position = place.unsqueeze(1) * size + torch.arange(size)
    seen = position < length[owner].unsqueeze(1)
    if window is not None:
        seen &= position >= (length[owner] - window).unsqueeze(1)
    edges = (~seen).any(1).nonzero().squeeze(1)
    hidden = ~seen[edges].view(-1, 1, size, 1)
    owner_row, place = row[owner].to(device, non_blocking=True), place.to(device, non_blocking=True)
    return _DecodeBatch(
        tokens=token.to(device, non_blocking=True),
        blocks=meta.block_table[owner_row, place].long(),
        row=owner.to(device, non_blocking=True),
        seen=seen.to(device, non_blocking=True),
        edges=edges.to(device, non_blocking=True),
        edge_hidden=hidden.to(device, non_blocking=True),
    )


def _decode(q: Tensor, kv: Tensor, batch: _DecodeBatch, scale: float, softcap: float | None) -> Tensor:
    """One query a row: ``[M, H, D] -> [M, H, D]``."""
    rows, heads, dim = q.shape
    kv_heads = kv.shape[2]
    q = q.view(rows, kv_heads, heads // kv_heads, dim)
    key = kv.select(1, 0).index_select(0, batch.blocks)  # [G, H_kv, B, D]
    value = kv.select(1, 1).index_select(0, batch.blocks)
    value.index_copy_(0, batch.edges, value.index_select(0, batch.edges).masked_fill_(batch.edge_hidden, 0.0))

    scores = (q.index_select(0, batch.row) @ key.transpose(-1, -2)).float().mul_(scale)  # [G, H_kv, H / H_kv, B]
    scores = _capped(scores, softcap).masked_fill_(~batch.seen[:, None, None, :], float("-inf"))

    flat = (scores.shape[0], heads)
    owner = batch.row.unsqueeze(1).expand(flat)
    top = scores.new_full((rows, heads), float("-inf"))
    top.scatter_reduce_(0, owner, scores.amax(-1).view(flat), "amax")
    weights = (scores - top.view(rows, *q.shape[1:3], 1).index_select(0, batch.row)).exp_()
    total = weights.new_zeros(rows, *q.shape[1:3], 1).index_add_(0, batch.row, weights.sum(-1, keepdim=True))
    part = (weights.to(value.dtype) @ value).float()
    out = part.new_zeros(q.shape).index_add_(0, batch.row, part)
    return (out / total).view(rows, heads, dim).to(q.dtype)


def _prefill(
    q: Tensor,
    kv: Tensor,
    meta: AttentionMeta,
    row: _PrefillRow,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Many queries of one row: ``[t, H, D] -> [t, H, D]``. Exactly the written slots are read."""
    count, heads, dim = q.shape
    kv_heads = kv.shape[2]
    past = row.seq_len - count
    first = _first_block(past, window, meta.block_size)
    last = (row.seq_len + meta.block_size - 1) // meta.block_size
    blocks = meta.block_table[row.index, first:last].long()
    base = first * meta.block_size  # position of the first gathered slot
    gathered = [
        kv.select(1, half).index_select(0, blocks).transpose(0, 1).reshape(kv_heads, 1, -1, dim) for half in (0, 1)
    ]
    key, value = (part[:, :, : row.seq_len - base] for part in gathered)
    q = q.view(count, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)  # [H_kv, H / H_kv, t, D]
    parts = []
    for begin in range(0, count, _TILE):
        end = min(begin + _TILE, count)
        low = 0 if window is None else max(0, past + begin + 1 - window)
        keys = slice(low - base, past + end - base)
        mask = _mask(past + begin, past + end, low, window, q.device)
        parts.append(_tile(q[:, :, begin:end], key[:, :, keys], value[:, :, keys], mask, scale, softcap))
    return torch.cat(parts, dim=2).permute(2, 0, 1, 3).reshape(count, heads, dim)


def _mask(begin: int, end: int, low: int, window: int | None, device: torch.device) -> Tensor:
    """Who sees whom, for queries at positions begin..end and keys at low..end: ``[t, s]`` bool."""
    query = torch.arange(begin, end, device=device).unsqueeze(1)
    key = torch.arange(low, end, device=device)
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def _tile(q: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
    """``[H_kv, H / H_kv, t, D]`` against ``[H_kv, 1, s, D]``; a head's keys are shared by a view, not copied."""
    # On CUDA torch's fused attention gave wrong last rows for heads of 256 under a mask of odd height (torch 2.11).
    if softcap is None and q.device.type == "cpu":
        shape = (*q.shape[:2], *key.shape[2:])
        return F.scaled_dot_product_attention(q, key.expand(shape), value.expand(shape), attn_mask=mask, scale=scale)
    scores = _capped((q @ key.transpose(-1, -2)).float().mul_(scale), softcap)
    return scores.masked_fill_(~mask, float("-inf")).softmax(-1).to(value.dtype) @ value


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores bent into (-softcap, softcap), as Gemma 2 does."""
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)
