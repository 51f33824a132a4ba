"""Paged attention written as loops, and steps to feed it: what any backend is compared with."""

import itertools
import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.kernels.context import AttentionMeta

Rows = Sequence[tuple[int, int]]  # queries, tokens already in the cache


def make_step(
    rows: Rows, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, list[Tensor], AttentionMeta]:
    """A cache ``[N, 2, H_kv, B, D]`` full of NaN but for the slots that the rows have written; the written keys and
    values of each row ``[positions, 2, H_kv, D]``; and the step's meta."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [count + past for count, past in rows]
    width = max(-(-length // block_size) for length in lengths) + 1
    num_blocks = sum(-(-length // block_size) for length in lengths) + 3
    pool = torch.full((num_blocks, 3, 2, num_kv_heads, block_size, head_dim), float("nan"), dtype=dtype)
    kv = pool[:, 1]
    free = list(range(1, num_blocks))
    random.Random(seed).shuffle(free)
    table = torch.zeros(len(rows), width, dtype=torch.int32)
    written = []
    for row, length in enumerate(lengths):
        content = torch.randn(length, 2, num_kv_heads, head_dim, generator=generator).to(dtype)
        for block in range(-(-length // block_size)):
            table[row, block] = free.pop()
        for position in range(length):
            kv[table[row, position // block_size], :, :, position % block_size] = content[position]
        written.append(content)
    counts = [count for count, _ in rows]
    meta = AttentionMeta(
        block_table=table,
        slots=torch.zeros(sum(counts), dtype=torch.int64),
        query_start=torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        positions=torch.tensor([past + j for count, past in rows for j in range(count)]),
        block_size=block_size,
        num_rows=len(rows),
        query_lens=counts,
        seq_lens_host=lengths,
    )
    return kv, written, meta


def naive(
    q: Tensor, rows: Rows, written: list[Tensor], scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """One query, one head at a time: ``[T, H, D] -> [T, H, D]`` fp32."""
    out = []
    token = 0
    heads, kv_heads = q.shape[1], written[0].shape[2]
    for (count, past), content in zip(rows, written):
        for position in range(past, past + count):
            low = 0 if window is None else max(0, position - window + 1)
            for head in range(heads):
                kv_head = head // (heads // kv_heads)
                scores = [float(q[token, head] @ content[p, 0, kv_head]) * scale for p in range(low, position + 1)]
                if softcap is not None:
                    scores = [softcap * math.tanh(score / softcap) for score in scores]
                weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
                out.append((weights[:, None] * content[low : position + 1, 1, kv_head].double()).sum(0))
            token += 1
    return torch.stack(out).view(token, heads, -1).float()
