"""Paged causal attention of rows that compute many tokens at once (FlashAttention-2, Dao 2023, over a block table).

A program takes one tile of queries of one row and one head, and walks the row's cache from the first visible
token to the tile's last. Tiles of all rows form one list, found by bisection over `cu_tiles`.
Legend: T tokens, R rows, H heads, D head dim, B block size, N blocks.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.attention_tile import LOG2E, attend
from octavo.kernels.triton.common import LAUNCH, find_row, let_next_start, pow2, wait_for_inputs


@triton.jit
def _bounds(first_query, window, M: tl.constexpr, TILE: tl.constexpr, WINDOWED: tl.constexpr):
    """First token that a tile of queries sees, the first tile that holds it, and the stretch that all queries see
    whole, which needs no mask."""
    lowest = 0
    low = 0
    clean_low = 0
    clean_high = (first_query + 1) // TILE * TILE
    if WINDOWED:
        lowest = tl.maximum(first_query - window + 1, 0)
        low = lowest // TILE * TILE
        clean_low = tl.maximum(first_query + M - window, 0)
        clean_low = (clean_low + TILE - 1) // TILE * TILE
        clean_low = tl.minimum(tl.maximum(clean_low, low), tl.maximum(clean_high, low))
    return lowest, low, clean_low, tl.maximum(clean_high, clean_low)


@triton.jit(do_not_specialize=["num_rows", "window"])
def _prefill(
    q_ptr,
    kv_ptr,
    table_ptr,
    lens_ptr,
    query_start_ptr,
    cu_tiles_ptr,
    out_ptr,
    num_rows,
    stride_q,
    stride_table,
    stride_block,
    stride_half,
    stride_head,
    scale_log2,
    softcap,
    window,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    B: tl.constexpr,
    M: tl.constexpr,
    TILE: tl.constexpr,
    CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    let_next_start()
    wait_for_inputs()
    # Late tiles of a long row see most, so they start first.
    item = tl.load(cu_tiles_ptr + num_rows) - 1 - tl.program_id(1)
    head = tl.program_id(0)
    if item >= 0:
        row = find_row(cu_tiles_ptr, item, num_rows)
        tile = item - tl.load(cu_tiles_ptr + row)
        begin = tl.load(query_start_ptr + row)
        query_len = tl.load(query_start_ptr + row + 1) - begin
        length = tl.load(lens_ptr + row)
        offset = tile * M + tl.arange(0, M)
        query_at = length - query_len + offset
        column = tl.arange(0, D_PAD)
        q_inside = (offset[:, None] < query_len) & (column[None, :] < D)
        q_at = (begin + offset).to(tl.int64)[:, None] * stride_q + head * D + column[None, :]
        q = tl.load(q_ptr + q_at, mask=q_inside, other=0.0)

        first_query = length - query_len + tile * M
        high = tl.minimum(first_query + M, length)
        lowest, low, clean_low, clean_high = _bounds(first_query, window, M, TILE, WINDOWED)

        best = tl.full((M,), float("-inf"), tl.float32)
        total = tl.zeros((M,), tl.float32)
        acc = tl.zeros((M, D_PAD), tl.float32)
        table = table_ptr + row.to(tl.int64) * stride_table
        base = kv_ptr + (head // G) * stride_head
        for phase in tl.static_range(3):
            if phase == 0:
                part_low = low
                part_high = clean_low
            elif phase == 1:
                part_low = clean_low
                part_high = clean_high
            else:
                part_low = clean_high
                part_high = high
            if WINDOWED or phase > 0:
                for at in range(part_low, part_high, TILE):
                    best, total, acc = attend(
                        q, base, stride_half, stride_block, table, at, lowest, high, query_at, window, scale_log2,
                        softcap, best, total, acc, D, D_PAD, B, TILE, CAPPED, phase != 1, True, WINDOWED, PRECISION,
                    )  # fmt: skip
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        out_at = (begin + offset).to(tl.int64)[:, None] * (H * D) + head * D + column[None, :]
        tl.store(out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), mask=q_inside)


def query_tile(dtype_bytes: int, head_dim: int) -> int:
    """Queries in one tile."""
    if dtype_bytes == 4:
        return 32
    return 128 if head_dim <= 128 else 64


def prefill_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start: torch.Tensor,
    cu_tiles: torch.Tensor,
    max_tiles: int,
    out: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> None:
    """The rows that have tiles: q and out ``[T, H, D]``, kv ``[N, 2, H_kv, B, D]``, table ``[R, max_blocks]``.

    cu_tiles int32 ``[R + 1]``: running count of query tiles of `query_tile` each; max_tiles bounds its last entry.
    """
    heads, dim = q.shape[1], q.shape[2]
    kv_heads, block_size = kv.shape[2], kv.shape[3]
    rows = seq_lens.shape[0]
    exact = q.dtype == torch.float32
    padded = max(16, pow2(dim))
    _prefill[(heads, max_tiles)](
        q,
        kv,
        table,
        seq_lens,
        query_start,
        cu_tiles,
        out,
        rows,
        q.stride(0),
        table.stride(0),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        scale * LOG2E.value,
        softcap or 1.0,
        window or 0,
        H=heads,
        G=heads // kv_heads,
        D=dim,
        D_PAD=padded,
        B=block_size,
        M=query_tile(q.dtype.itemsize, dim),
        TILE=32 if exact else 64 if padded > 128 else 128,
        CAPPED=softcap is not None,
        WINDOWED=window is not None,
        PRECISION="ieee" if exact else "tf32",
        num_warps=4 if exact else 8,
        num_stages=1 if exact else 2 if padded > 128 else 3,
        **LAUNCH,
    )
