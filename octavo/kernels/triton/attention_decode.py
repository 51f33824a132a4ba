"""Paged attention of rows that compute one token: split over the past (FlashDecoding, Dao et al. 2023), balanced.

The visible past of every row is cut into chunks of one length, chosen per step so that all multiprocessors have
about the same number of them whatever the mix of row lengths. A fixed grid of programs walks the list of
(chunk, KV head), so the launch does not depend on lengths and can sit inside a CUDA graph. Rows of one chunk are
written straight to the output; the others leave partial sums that `_merge` adds up.

The query heads of a KV head share each read of K and V. Legend: R rows, H heads, G query heads a KV head, D head dim,
B block size, N blocks, C chunks.
"""

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from octavo.kernels.context import AttentionMeta
from octavo.kernels.triton.attention_tile import LOG2E, attend
from octavo.kernels.triton.common import LAUNCH, ask_for, find_row, let_next_start, pow2, wait_for_inputs

MIN_CHUNK = 64
GOOD_CHUNK = 256
TILE, AHEAD, NEXT, WARPS, STAGES = 64, 64, 64, 2, 3


@dataclass(slots=True)
class DecodePlan:
    """Where the chunks lie. `cu_chunks` int32 ``[R + 1]`` on the device, chunk c of row r is item cu_chunks[r] + c;
    `chunk` int32 ``[1]``, tokens in a chunk; the partials have room for `capacity` items."""

    cu_chunks: torch.Tensor
    chunk: torch.Tensor
    part: torch.Tensor  # [capacity, H, D] fp32
    lse: torch.Tensor  # [capacity, H] fp32, log2 of the sum of exponentials
    programs: int


def choose_chunk(visible: np.ndarray, num_kv_heads: int, programs: int) -> int:
    """Tokens a chunk, a multiple of 64. visible ``[R]`` tokens.

    Four items a program even out rows of mixed length; chunks under `GOOD_CHUNK` waste more on starting than that
    saves, so shorter ones are taken only to give every program something at all.
    """
    total = int(np.add.reduce(visible)) * num_kv_heads
    ideal = max(total // (4 * programs), min(GOOD_CHUNK, total // programs))
    return max(MIN_CHUNK, -(-ideal // 64) * 64)


def chunk_capacity(max_rows: int, programs: int, num_kv_heads: int) -> int:
    """Items that `choose_chunk` can lead to at most: a remainder a row, and the whole ones."""
    return max_rows + -(-4 * programs // num_kv_heads) + 1


@triton.jit
def _stretch(piece, cu_ptr, lens_ptr, num_rows, chunk, window, WINDOWED: tl.constexpr):
    """Of a chunk: its row, which of the row's it is, their first and number, its tokens ``low .. high``."""
    row = tl.minimum(find_row(cu_ptr, piece, num_rows), num_rows - 1)
    first = tl.load(cu_ptr + row)
    pieces = tl.load(cu_ptr + row + 1) - first
    length = tl.load(lens_ptr + row)
    start = 0
    if WINDOWED:
        start = tl.maximum(length - window, 0)
    index = piece - first
    low = start + index * chunk
    return row, index, first, pieces, low, tl.minimum(low + chunk, length)


@triton.jit
def _ask_for_tile(
    cache, stride_half, stride_block, table, low, high, TILE: tl.constexpr, D: tl.constexpr, B: tl.constexpr
):
    """Have the first `TILE` keys and values of a chunk ``low .. high`` brought near; no wait."""
    token = tl.minimum(low + tl.arange(0, TILE), tl.maximum(high - 1, 0))
    block = tl.load(table + token // B).to(tl.int64)
    key = cache + block * stride_block + (token % B) * D
    lines: tl.constexpr = (D * cache.dtype.element_ty.primitive_bitwidth // 8 + 127) // 128
    ask_for(key, lines)
    ask_for(key + stride_half, lines)


# Where a step's numbers begin in their buffer depends on its rows: it must not ask for a kernel of its own.
@triton.jit(
    do_not_specialize=["num_rows", "window"],
    do_not_specialize_on_alignment=["table_ptr", "lens_ptr", "query_start_ptr", "cu_ptr", "chunk_ptr"],
)
def _decode(
    q_ptr, kv_ptr, table_ptr, lens_ptr, query_start_ptr, cu_ptr, chunk_ptr, out_ptr, part_ptr, lse_ptr, num_rows,
    stride_q, stride_table, stride_block, stride_half, stride_head, scale_log2, softcap, window,
    H_KV: tl.constexpr, G: tl.constexpr, G_PAD: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, B: tl.constexpr,
    TILE: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr, AHEAD: tl.constexpr,
    NEXT: tl.constexpr,
):  # fmt: skip
    let_next_start()
    num_items = tl.load(cu_ptr + num_rows) * H_KV
    chunk = tl.load(chunk_ptr)
    head = tl.arange(0, G_PAD)
    column = tl.arange(0, D_PAD)
    h: tl.constexpr = H_KV * G
    inside = (head[:, None] < G) & (column[None, :] < D)
    last = tl.maximum(num_items - 1, 0)
    ahead = tl.minimum(tl.program_id(0), last)
    row, index, first, pieces, low, high = _stretch(ahead // H_KV, cu_ptr, lens_ptr, num_rows, chunk, window, WINDOWED)
    if AHEAD:
        _ask_for_tile(
            kv_ptr + ahead % H_KV * stride_head, stride_half, stride_block, table_ptr + row.to(tl.int64) * stride_table,
            low, high, AHEAD, D, B,
        )  # fmt: skip
    wait_for_inputs()
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        kv_head = item % H_KV
        query = tl.load(query_start_ptr + row).to(tl.int64)
        q_at = query * stride_q + (kv_head * G + head[:, None]) * D + column[None, :]
        q = tl.load(q_ptr + q_at, mask=inside, other=0.0)
        cache = kv_ptr + kv_head * stride_head
        ahead = tl.minimum(item + tl.num_programs(0), last)
        next_row, next_index, next_first, next_pieces, next_low, next_high = _stretch(
            ahead // H_KV, cu_ptr, lens_ptr, num_rows, chunk, window, WINDOWED
        )
        if NEXT:
            _ask_for_tile(
                kv_ptr + ahead % H_KV * stride_head, stride_half, stride_block, table_ptr + next_row.to(tl.int64) * stride_table,
                next_low, next_high, NEXT, D, B,
            )  # fmt: skip

        best = tl.full((G_PAD,), float("-inf"), tl.float32)
        total = tl.zeros((G_PAD,), tl.float32)
        acc = tl.zeros((G_PAD, D_PAD), tl.float32)
        table = table_ptr + row.to(tl.int64) * stride_table
        for at in range(low, high, TILE):
            best, total, acc = attend(
                q, cache, stride_half, stride_block, table, at, low, high, head, window, scale_log2, softcap,
                best, total, acc, D, D_PAD, B, TILE, CAPPED, True, False, False, PRECISION,
            )  # fmt: skip
        acc = acc / total[:, None]
        if pieces == 1:
            out_at = (query * h + kv_head * G + head[:, None]) * D + column[None, :]
            tl.store(out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), mask=inside)
        else:
            spot = (first + index).to(tl.int64) * h + kv_head * G + head
            tl.store(part_ptr + spot[:, None] * D + column[None, :], acc, mask=inside)
            tl.store(lse_ptr + spot, best + tl.log2(total), mask=head < G)
        row, index, first, pieces, low, high = next_row, next_index, next_first, next_pieces, next_low, next_high


@triton.jit(do_not_specialize_on_alignment=["cu_ptr", "query_start_ptr"])
def _merge(
    part_ptr,
    lse_ptr,
    cu_ptr,
    query_start_ptr,
    out_ptr,
    H: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PIECES: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    let_next_start()
    first = tl.load(cu_ptr + row)
    count = tl.load(cu_ptr + row + 1) - first
    query = tl.load(query_start_ptr + row).to(tl.int64)
    wait_for_inputs()
    if count > 1:
        column = tl.arange(0, D_PAD)
        piece = tl.arange(0, PIECES)
        best = float("-inf")
        total = 0.0
        acc = tl.zeros((D_PAD,), tl.float32)
        for step in range(0, count, PIECES):
            live = step + piece < count
            at = (first + step + piece).to(tl.int64) * H + head
            lse = tl.load(lse_ptr + at, mask=live, other=float("-inf"))
            inside = live[:, None] & (column < D)[None, :]
            part = tl.load(part_ptr + at[:, None] * D + column[None, :], mask=inside, other=0.0)
            top = tl.maximum(best, tl.max(lse, axis=0))
            decay = tl.exp2(best - top)
            weight = tl.exp2(lse - top)
            acc = acc * decay + tl.sum(part * weight[:, None], axis=0)
            total = total * decay + tl.sum(weight, axis=0)
            best = top
        out_at = (query * H + head) * D + column
        tl.store(out_ptr + out_at, (acc / total).to(out_ptr.dtype.element_ty), mask=column < D)


def decode_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    meta: AttentionMeta,
    plan: DecodePlan,
    out: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> None:
    """The rows that have chunks: q and out ``[T, H, D]``, kv ``[N, 2, H_kv, B, D]``.

    Row r's query is token ``query_start[r]``; rows without chunks are left alone.
    """
    heads, dim = out.shape[1], out.shape[2]
    kv_heads, block_size = kv.shape[2], kv.shape[3]
    group = heads // kv_heads
    _decode[(plan.programs,)](
        q,
        kv,
        meta.block_table,
        meta.seq_lens,
        meta.query_start,
        plan.cu_chunks,
        plan.chunk,
        out,
        plan.part,
        plan.lse,
        meta.seq_lens.shape[0],
        q.stride(0),
        meta.block_table.stride(0),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        scale * LOG2E.value,
        softcap or 1.0,
        window or 0,
        H_KV=kv_heads,
        G=group,
        G_PAD=max(16, pow2(group)),
        D=dim,
        D_PAD=max(16, pow2(dim)),
        B=block_size,
        TILE=TILE,
        AHEAD=AHEAD,
        NEXT=NEXT,
        CAPPED=softcap is not None,
        WINDOWED=window is not None,
        PRECISION="ieee" if out.dtype == torch.float32 else "tf32",
        num_warps=WARPS if dim <= 128 else 4,
        num_stages=STAGES if dim <= 128 else 2,
        **LAUNCH,
    )
    _merge[(meta.seq_lens.shape[0], heads)](
        plan.part,
        plan.lse,
        plan.cu_chunks,
        meta.query_start,
        out,
        H=heads,
        D=dim,
        D_PAD=pow2(dim),
        PIECES=8,
        num_warps=1,
        **LAUNCH,
    )
