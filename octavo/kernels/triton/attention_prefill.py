"""Paged causal attention of rows that compute many tokens at once (FlashAttention-2, Dao 2023, over a block table).

A program takes one tile of queries of one row, with all heads that share a KV head, and walks the row's cache from the
first visible token to the tile's last. Tiles of all rows form one list, found by bisection over `cu_tiles`. Where there
are too few of them to keep the device busy, what a tile sees is cut into pieces, a program each, and `_join` adds those
up; into how many, the host says behind the last count. Programs are numbered through, so that a step planned ahead
starts few that find nothing to do.
Legend: T tokens, R rows, H heads, G heads a KV head, M lines of a tile (a query of one head each), D head dim, B block
size, N blocks, S pieces at most.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.context import AttentionMeta
from octavo.kernels.triton import attention_twins
from octavo.kernels.triton.attention_tile import LOG2E, attend, blocks_of, piece_of
from octavo.kernels.triton.attention_tiling import FEW_LINES, MAX_PIECES, ROOMY, Tiles, Tiling, key_tile, padded
from octavo.kernels.triton.common import LAUNCH, find_row, let_next_start, pow2, shared_memory, wait_for_inputs
from octavo.kernels.triton.target import target_here

# Arguments that differ from step to step, and must not each ask for a kernel of its own.
NUMBERS = ["num_rows", "num_tokens", "window"]
PLACES = ["table_ptr", "lens_ptr", "query_start_ptr", "cu_tiles_ptr"]
JOINERS = 32  # programs a multiprocessor, of one warp


@triton.jit
def _bounds(first_query, window, QUERIES: tl.constexpr, TILE: tl.constexpr, WINDOWED: tl.constexpr):
    """First token that a tile of queries sees, the first tile that holds it, and the stretch that all queries see
    whole, which needs no mask."""
    lowest = 0
    low = 0
    clean_low = 0
    clean_high = (first_query + 1) // TILE * TILE
    if WINDOWED:
        lowest = tl.maximum(first_query - window + 1, 0)
        low = lowest // TILE * TILE
        clean_low = tl.maximum(first_query + QUERIES - window, 0)
        clean_low = (clean_low + TILE - 1) // TILE * TILE
        clean_low = tl.minimum(tl.maximum(clean_low, low), tl.maximum(clean_high, low))
    return lowest, low, clean_low, tl.maximum(clean_high, clean_low)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=PLACES)
def _prefill(
    q_ptr, kv_ptr, table_ptr, lens_ptr, query_start_ptr, cu_tiles_ptr, out_ptr, part_ptr, lse_ptr, num_rows, num_tokens,
    stride_q, stride_table, stride_block, stride_half, stride_head, scale_log2, softcap, window,
    H_KV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, B: tl.constexpr, M: tl.constexpr,
    QUERIES: tl.constexpr, TILE: tl.constexpr, LEAST: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    num_tiles = tl.load(cu_tiles_ptr + num_rows)
    kv_head = tl.program_id(0) % H_KV
    work = tl.program_id(0) // H_KV
    pieces = tl.load(cu_tiles_ptr + num_rows + 1)
    piece_index = work % pieces
    work = work // pieces
    # Late tiles of a long row see most, so they start first.
    item = num_tiles - 1 - work
    if item >= 0:
        row = find_row(cu_tiles_ptr, item, num_rows)
        tile = item - tl.load(cu_tiles_ptr + row)
        begin = tl.load(query_start_ptr + row)
        query_len = tl.load(query_start_ptr + row + 1) - begin
        length = tl.load(lens_ptr + row)
        first_query = length - query_len + tile * QUERIES
        high = tl.minimum(first_query + QUERIES, length)
        lowest, low, clean_low, clean_high = _bounds(first_query, window, QUERIES, TILE, WINDOWED)
        piece = piece_of(low, high, pieces, LEAST, TILE)
        mine_low = low + piece_index * piece
        mine_high = tl.minimum(mine_low + piece, high)
        if mine_low < mine_high:
            line = tl.arange(0, M)
            offset = tile * QUERIES + line // G
            head = kv_head * G + line % G
            query_at = length - query_len + offset
            column = tl.arange(0, D_PAD)
            mine = (line < QUERIES * G) & (offset < query_len)
            inside = mine[:, None] & (column[None, :] < D)
            token = (begin + offset).to(tl.int64)
            q_at = q_ptr + token * stride_q + head * D
            q = tl.load(q_at[:, None] + column[None, :], mask=inside, other=0.0)
            best = tl.full((M,), float("-inf"), tl.float32)
            total = tl.zeros((M,), tl.float32)
            acc = tl.zeros((M, D_PAD), tl.float32)
            table = table_ptr + row.to(tl.int64) * stride_table
            base = kv_ptr + kv_head * stride_head
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
                    part_low = tl.maximum(part_low, mine_low)
                    # Read a tile ahead: an address that a read of the same round gives cannot be read from ahead.
                    ahead = blocks_of(table, part_low, high, B, TILE)
                    for at in range(part_low, tl.minimum(part_high, mine_high), TILE):
                        blocks = ahead
                        ahead = blocks_of(table, at + TILE, high, B, TILE)
                        best, total, acc = attend(
                            q, base, stride_half, stride_block, blocks, at, lowest, high, query_at, window, scale_log2,
                            softcap, best, total, acc, D, D_PAD, B, TILE, CAPPED, phase != 1, True, WINDOWED, PRECISION,
                        )  # fmt: skip
            acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
            at = token * (H_KV * G) + head
            if mine_high - mine_low == high - low:
                tl.store(out_ptr + at[:, None] * D + column[None, :], acc.to(out_ptr.dtype.element_ty), mask=inside)
            else:
                spot = tl.cast(piece_index, tl.int64) * num_tokens * (H_KV * G) + at
                tl.store(part_ptr + spot[:, None] * D + column[None, :], acc, mask=inside)
                tl.store(lse_ptr + spot, best + tl.log2(total), mask=mine)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=PLACES)
def _join(
    part_ptr, lse_ptr, lens_ptr, query_start_ptr, cu_tiles_ptr, out_ptr, num_rows, num_tokens, window,
    H_KV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, QUERIES: tl.constexpr,
    TILE: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    most = tl.load(cu_tiles_ptr + num_rows + 1)
    if most > 1:
        total = tl.load(query_start_ptr + num_rows) * (H_KV * G)
        for work in range(tl.program_id(0), total, tl.num_programs(0)):
            token, head = work // (H_KV * G), work % (H_KV * G)
            row = find_row(query_start_ptr, token, num_rows)
            tiled = tl.load(cu_tiles_ptr + row + 1) > tl.load(cu_tiles_ptr + row)  # else another kernel has the row
            begin = tl.load(query_start_ptr + row)
            query_len = tl.load(query_start_ptr + row + 1) - begin
            length = tl.load(lens_ptr + row)
            first_query = length - query_len + (token - begin) // QUERIES * QUERIES
            high = tl.minimum(first_query + QUERIES, length)
            _, low, _, _ = _bounds(first_query, window, QUERIES, TILE, WINDOWED)
            pieces = tl.cdiv(high - low, piece_of(low, high, most, LEAST, TILE))
            if tiled & (pieces > 1):
                column = tl.arange(0, D_PAD)
                piece = tl.arange(0, MOST)
                live = piece < pieces
                at = (piece.to(tl.int64) * num_tokens + token) * (H_KV * G) + head
                lse = tl.load(lse_ptr + at, mask=live, other=float("-inf"))
                inside = live[:, None] & (column < D)[None, :]
                part = tl.load(part_ptr + at[:, None] * D + column[None, :], mask=inside, other=0.0)
                weight = tl.exp2(lse - tl.max(lse, axis=0))
                joined = tl.sum(part * weight[:, None], axis=0) / tl.sum(weight, axis=0)
                spot = tl.cast(work, tl.int64) * D + column
                tl.store(out_ptr + spot, joined.to(out_ptr.dtype.element_ty), mask=column < D)


def prefill_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    meta: AttentionMeta,
    tiles: Tiles,
    out: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> None:
    """The rows that have tiles: q and out ``[T, H, D]``, kv ``[N, 2, H_kv, B, D]``."""
    tokens, heads, dim = q.shape
    kv_heads = kv.shape[2]
    most, busy = tiles.tiling.most, tiles.tiling.busy
    # Where nothing is cut they are never followed, but no kernel of its own is worth its compilation.
    places = tokens if most > 1 else 0
    part = torch.empty((most, places, heads, dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((most, places, heads), dtype=torch.float32, device=q.device)
    lines = padded(tiles.tiling.queries * (heads // kv_heads))
    shape = _shape(q, kv_heads, tiles.tiling, lines, windowed=window is not None)
    rows, past = meta.seq_lens.shape[0], (meta.seq_lens, meta.query_start, tiles.running)
    programs = max(kv_heads * tiles.most, busy if most > 1 else 0)
    if lines > FEW_LINES and attention_twins.suits(heads // kv_heads, dim, q.element_size(), kv.shape[3], window):
        attention_twins.prefill_by_twins(q, kv, meta, tiles, programs, out, part, lse, scale, softcap)
    else:
        _prefill[(programs,)](
            q,
            kv,
            meta.block_table,
            *past,
            out,
            part,
            lse,
            rows,
            tokens,
            q.stride(0),
            meta.block_table.stride(0),
            kv.stride(0),
            kv.stride(1),
            kv.stride(2),
            scale * LOG2E.value,
            softcap or 1.0,
            window or 0,
            B=kv.shape[3],
            M=lines,
            CAPPED=softcap is not None,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            **_resources(q, lines),
            **shape,
            **LAUNCH,
        )
    if most > 1:
        # Where nothing was cut there is nothing to do, and a program for each token would take longer than the rest.
        grid = (min(tokens * heads, JOINERS * target_here().multiprocessors),)
        slots = 16 if most <= 16 else MAX_PIECES
        _join[grid](part, lse, *past, out, rows, tokens, window or 0, MOST=slots, num_warps=1, **shape, **LAUNCH)


def _resources(q: torch.Tensor, lines: int) -> dict[str, int]:
    """Warps, and tiles on the way at once."""
    exact, roomy = q.dtype == torch.float32, shared_memory() >= ROOMY
    deep = pow2(q.shape[2]) <= 128 and roomy
    return {
        "num_warps": 8 if roomy and not exact and (lines > FEW_LINES or not deep) else 4,
        "num_stages": 1 if exact else 3 if deep else 2,
    }


def _shape(q: torch.Tensor, kv_heads: int, tiling: Tiling, lines: int, *, windowed: bool) -> dict[str, int | bool]:
    """What both kernels are compiled for."""
    return {
        "H_KV": kv_heads,
        "G": q.shape[1] // kv_heads,
        "D": q.shape[2],
        "D_PAD": max(16, pow2(q.shape[2])),
        "QUERIES": tiling.queries,
        "TILE": key_tile(q.dtype.itemsize, q.shape[2], lines),
        "LEAST": tiling.least,
        "WINDOWED": windowed,
    }
