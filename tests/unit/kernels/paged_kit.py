"""Steps over a paged cache, for tests of attention: on the GPU if there is one."""

import itertools
from dataclasses import replace

import torch

from octavo.kernels.context import AttentionMeta

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16] if GPU else [torch.float32]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"atol": 2e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}


def make_meta(query_lens: list[int], seq_lens: list[int], block_size: int) -> AttentionMeta:
    """Rows on blocks in shuffled order, block 0 left out."""
    counts = [-(-length // block_size) for length in seq_lens]
    order = (torch.randperm(sum(counts)) + 1).tolist()
    table = torch.zeros(len(seq_lens), max(counts), dtype=torch.int32)
    slots, positions = [], []
    for row, count in enumerate(counts):
        table[row, :count] = torch.tensor([order.pop() for _ in range(count)])
        for position in range(seq_lens[row] - query_lens[row], seq_lens[row]):
            slots.append(int(table[row, position // block_size]) * block_size + position % block_size)
            positions.append(position)
    start = [0, *itertools.accumulate(query_lens)]
    return AttentionMeta(
        block_table=table.to(DEVICE),
        slots=torch.tensor(slots, dtype=torch.int64, device=DEVICE),
        query_start=torch.tensor(start, dtype=torch.int32, device=DEVICE),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=DEVICE),
        positions=torch.tensor(positions, dtype=torch.int64, device=DEVICE),
        block_size=block_size,
        num_rows=len(seq_lens),
        query_lens=query_lens,
        seq_lens_host=seq_lens,
    )


def on_cpu(meta: AttentionMeta) -> AttentionMeta:
    tensors = ("block_table", "slots", "query_start", "seq_lens", "positions")
    return replace(meta, scratch={}, **{name: getattr(meta, name).cpu() for name in tensors})


def make_cache(
    meta: AttentionMeta, kv_heads: int, dim: int, dtype: torch.dtype, slots: int = 3, window: int | None = None
) -> torch.Tensor:
    """A view of one layer slot out of several, as the pool has it; what no row has written is not a number, nor is
    what has left the window of a row's first query."""
    blocks = int(meta.block_table.max()) + 1
    pool = torch.full((blocks, slots, 2, kv_heads, meta.block_size, dim), float("nan"), dtype=dtype, device=DEVICE)
    kv = pool[:, 1]
    for row, length in enumerate(meta.seq_lens_host):
        for index in range(-(-length // meta.block_size)):
            used = min(meta.block_size, length - index * meta.block_size)
            shape = (2, kv_heads, used, dim)
            kv[int(meta.block_table[row, index]), :, :, :used] = torch.randn(shape, device=DEVICE).to(dtype)
        gone = 0 if window is None else max(0, length - meta.query_lens[row] - window + 1) // meta.block_size
        kv[meta.block_table[row, :gone].long()] = float("nan")
    return kv
