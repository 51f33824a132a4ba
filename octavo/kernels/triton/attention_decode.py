"""Paged attention of rows that compute one token: split over the past (FlashDecoding, Dao et al. 2023), balanced.

The visible past of every row and KV head is cut into tiles of 64 tokens. All tiles stand in one line, row after row,
and every program takes the same number of neighbours from it (as Stream-K does with products, Osama et al. 2023),
whatever the mix of lengths. The grid is fixed, so the launch can sit inside a CUDA graph. Rows that one program sees
whole are written straight to the output; of the others each program leaves a partial sum, and `_merge` adds them up.

The query heads of a KV head share each read of K and V. Legend: R rows, H heads, G query heads a KV head, D head dim,
B block size, N blocks, P programs.
"""

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from octavo.kernels.ahead import Ints, Longs
from octavo.kernels.context import AttentionMeta
from octavo.kernels.triton.attention_tile import LOG2E, attend, blocks_of
from octavo.kernels.triton.common import LAUNCH, find_row, let_next_start, pow2, wait_for_inputs

TILE = 64
SHIFT = TILE.bit_length() - 1


@dataclass(slots=True)
class DecodePlan:
    """Where the tiles lie. `cu_tiles` int32 ``[R + 1]`` on the device: running count of a KV head's tiles over rows;
    `share` int32 ``[1]``, tiles of a program. A program leaves two partials at most, of its first and its last row."""

    cu_tiles: torch.Tensor
    share: torch.Tensor
    part: torch.Tensor  # [2 P, G, D] fp32
    lse: torch.Tensor  # [2 P, G] fp32, log2 of the sum of exponentials
    programs: int
    tickets: torch.Tensor | None = None  # [R H_kv] int32, zero between launches; it is made for attention_early


def deal_tiles(out: Ints, visible: Longs, num_kv_heads: int, programs: int) -> int:
    """`DecodePlan.cu_tiles` of rows with visible ``[R]`` tokens; gives `share`."""
    out[0] = 0
    out[1:] = np.add.accumulate((visible + (TILE - 1)) >> SHIFT)  # far quicker than into numbers of 32 bits
    return max(1, -(-int(out[visible.size]) * num_kv_heads // programs))


@triton.jit
def _segment(row, at, end, cu_ptr, H_KV: tl.constexpr):
    """Place `at` in the line of tiles, in `row` or behind it: its row, KV head, which of their tiles it is, how many of
    them the program takes and whether that is all."""
    last = tl.load(cu_ptr + row + 1)
    while last * H_KV <= at:
        row += 1
        last = tl.load(cu_ptr + row + 1)
    first = tl.load(cu_ptr + row)
    tiles = last - first
    place = at - first * H_KV
    head = place // tiles
    tile = place - head * tiles
    count = tl.minimum(tiles - tile, end - at)
    return row, head, tile, count, count == tiles


# Where a step's numbers begin in their buffer depends on its rows: it must not ask for a kernel of its own.
@triton.jit(
    do_not_specialize=["num_rows", "window"],
    do_not_specialize_on_alignment=["table_ptr", "lens_ptr", "query_start_ptr", "cu_ptr", "share_ptr"],
)
def _decode(
    q_ptr, kv_ptr, table_ptr, lens_ptr, query_start_ptr, cu_ptr, share_ptr, out_ptr, part_ptr, lse_ptr, num_rows,
    stride_q, stride_table, stride_block, stride_half, stride_head, scale_log2, softcap, window,
    H_KV: tl.constexpr, G: tl.constexpr, G_PAD: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, B: tl.constexpr,
    TILE: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    let_next_start()
    share = tl.load(share_ptr)
    begin = tl.program_id(0) * share
    end = tl.minimum(begin + share, tl.load(cu_ptr + num_rows) * H_KV)
    group = tl.arange(0, G_PAD)
    column = tl.arange(0, D_PAD)
    inside = (group[:, None] < G) & (column[None, :] < D)
    at = begin
    row = find_row(cu_ptr, begin // H_KV, num_rows)
    while at < end:
        row, head, tile, count, whole = _segment(row, at, end, cu_ptr, H_KV)
        length = tl.load(lens_ptr + row)
        low = tile * TILE
        if WINDOWED:
            low += tl.maximum(length - window, 0)
        high = tl.minimum(low + count * TILE, length)
        query = tl.load(query_start_ptr + row).to(tl.int64)
        table = table_ptr + row.to(tl.int64) * stride_table
        spot = (query * H_KV + head) * G + group
        cache = kv_ptr + head * stride_head
        wait_for_inputs()
        q_at = query * stride_q + (head * G + group[:, None]) * D + column[None, :]
        q = tl.load(q_ptr + q_at, mask=inside, other=0.0)

        best = tl.full((G_PAD,), float("-inf"), tl.float32)
        total = tl.zeros((G_PAD,), tl.float32)
        acc = tl.zeros((G_PAD, D_PAD), tl.float32)
        for first in range(low, high, TILE):
            blocks = blocks_of(table, first, high, B, TILE)
            best, total, acc = attend(
                q, cache, stride_half, stride_block, blocks, first, low, high, group, window, scale_log2, softcap,
                best, total, acc, D, D_PAD, B, TILE, CAPPED, True, False, False, PRECISION,
            )  # fmt: skip
        acc = acc / total[:, None]
        if whole:
            tl.store(out_ptr + spot[:, None] * D + column[None, :], acc.to(out_ptr.dtype.element_ty), mask=inside)
        else:
            left = (2 * tl.program_id(0) + (at > begin).to(tl.int32)) * G + group
            tl.store(part_ptr + left[:, None] * D + column[None, :], acc, mask=inside)
            tl.store(lse_ptr + left, best + tl.log2(total), mask=group < G)
        at += count


@triton.jit(do_not_specialize_on_alignment=["cu_ptr", "share_ptr", "query_start_ptr"])
def _merge(
    part_ptr, lse_ptr, cu_ptr, share_ptr, query_start_ptr, out_ptr,
    H_KV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    let_next_start()
    share = tl.load(share_ptr)
    before = tl.load(cu_ptr + row)
    tiles = tl.load(cu_ptr + row + 1) - before
    first = before * H_KV + head // G * tiles
    program = first // share
    count = (first + tl.maximum(tiles, 1) - 1) // share - program + 1
    # The row is not the first of the program that it begins in: its partial stands second there.
    second = first > program * share
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
            spot = 2 * (program + step + piece) + (second & (step + piece == 0)).to(tl.int32)
            at = spot.to(tl.int64) * G + head % G
            lse = tl.load(lse_ptr + at, mask=live, other=float("-inf"))
            inside = live[:, None] & (column < D)[None, :]
            part = tl.load(part_ptr + at[:, None] * D + column[None, :], mask=inside, other=0.0)
            top = tl.maximum(best, tl.max(lse, axis=0))
            decay = tl.exp2(best - top)
            weight = tl.exp2(lse - top)
            acc = acc * decay + tl.sum(part * weight[:, None], axis=0)
            total = total * decay + tl.sum(weight, axis=0)
            best = top
        out_at = (query * H_KV * G + head) * D + column
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
    """The rows that have tiles: q and out ``[T, H, D]``, kv ``[N, 2, H_kv, B, D]``.

    Row r's query is token ``query_start[r]``; rows without tiles are left alone.
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
        plan.cu_tiles,
        plan.share,
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
        CAPPED=softcap is not None,
        WINDOWED=window is not None,
        PRECISION="ieee" if out.dtype == torch.float32 else "tf32",
        num_warps=2 if dim <= 128 else 4,
        num_stages=3 if dim <= 128 else 2,
        **LAUNCH,
    )
    _merge[(meta.seq_lens.shape[0], heads)](
        plan.part,
        plan.lse,
        plan.cu_tiles,
        plan.share,
        meta.query_start,
        out,
        H_KV=kv_heads,
        G=group,
        D=dim,
        D_PAD=pow2(dim),
        PIECES=8,
        num_warps=1,
        **LAUNCH,
    )
