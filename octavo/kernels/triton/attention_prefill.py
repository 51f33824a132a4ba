"""Paged causal attention of rows that compute many tokens at once (FlashAttention-2, Dao 2023, over a block table).

A program takes one tile of queries of one row and one head, and walks the row's cache from the first visible
token to the tile's last. Tiles of all rows form one list, found by bisection over `cu_tiles`. Where there are too few
of them to keep the device busy, what a tile sees is cut into pieces, a program each, and `_join` adds those up.
Legend: T tokens, R rows, H heads, D head dim, B block size, N blocks, S pieces at most.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.context import AttentionMeta
from octavo.kernels.triton.attention_tile import LOG2E, attend
from octavo.kernels.triton.common import LAUNCH, find_row, let_next_start, pow2, shared_memory, wait_for_inputs

MAX_PIECES = 16
ROOMY = 200_000  # bytes of shared memory with which the tiles that are best on an H200 fit
LEAST_PIECE = 512  # tokens; shorter pieces cost more in starting and adding up than they save


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


@triton.jit
def _piece(low, high, num_tiles, most, H: tl.constexpr, BUSY: tl.constexpr, LEAST: tl.constexpr):
    """Tokens of a piece of what a tile sees, a multiple of LEAST: all tiles make about BUSY programs, a tile `most`."""
    wanted = tl.minimum(tl.maximum(BUSY // (H * num_tiles), 1), most)
    return tl.maximum(tl.cdiv(tl.cdiv(high - low, wanted), LEAST), 1) * LEAST


@triton.jit(do_not_specialize=["num_rows", "num_tokens", "window", "most"])
def _prefill(
    q_ptr, kv_ptr, table_ptr, lens_ptr, query_start_ptr, cu_tiles_ptr, out_ptr, part_ptr, lse_ptr, num_rows, num_tokens,
    most, stride_q, stride_table, stride_block, stride_half, stride_head, scale_log2, softcap, window,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, B: tl.constexpr, M: tl.constexpr,
    TILE: tl.constexpr, SPLIT: tl.constexpr, BUSY: tl.constexpr, LEAST: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    # Late tiles of a long row see most, so they start first.
    num_tiles = tl.load(cu_tiles_ptr + num_rows)
    item = num_tiles - 1 - tl.program_id(1)
    head = tl.program_id(0)
    if item >= 0:
        row = find_row(cu_tiles_ptr, item, num_rows)
        tile = item - tl.load(cu_tiles_ptr + row)
        begin = tl.load(query_start_ptr + row)
        query_len = tl.load(query_start_ptr + row + 1) - begin
        length = tl.load(lens_ptr + row)
        first_query = length - query_len + tile * M
        high = tl.minimum(first_query + M, length)
        lowest, low, clean_low, clean_high = _bounds(first_query, window, M, TILE, WINDOWED)
        mine_low = low
        mine_high = high
        if SPLIT:
            piece = _piece(low, high, num_tiles, most, H, BUSY, LEAST)
            mine_low = low + tl.program_id(2) * piece
            mine_high = tl.minimum(mine_low + piece, high)
        if mine_low < mine_high:
            offset = tile * M + tl.arange(0, M)
            query_at = length - query_len + offset
            column = tl.arange(0, D_PAD)
            inside = (offset[:, None] < query_len) & (column[None, :] < D)
            token = (begin + offset).to(tl.int64)
            q = tl.load(q_ptr + token[:, None] * stride_q + head * D + column[None, :], mask=inside, other=0.0)
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
                    for at in range(tl.maximum(part_low, mine_low), tl.minimum(part_high, mine_high), TILE):
                        best, total, acc = attend(
                            q, base, stride_half, stride_block, table, at, lowest, high, query_at, window, scale_log2,
                            softcap, best, total, acc, D, D_PAD, B, TILE, CAPPED, phase != 1, True, WINDOWED, PRECISION,
                        )  # fmt: skip
            acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
            at = token * H + head
            if mine_high - mine_low == high - low:
                tl.store(out_ptr + at[:, None] * D + column[None, :], acc.to(out_ptr.dtype.element_ty), mask=inside)
            elif SPLIT:
                spot = tl.program_id(2).to(tl.int64) * num_tokens * H + at
                tl.store(part_ptr + spot[:, None] * D + column[None, :], acc, mask=inside)
                tl.store(lse_ptr + spot, best + tl.log2(total), mask=offset < query_len)


@triton.jit(do_not_specialize=["num_rows", "num_tokens", "window", "most"])
def _join(
    part_ptr, lse_ptr, lens_ptr, query_start_ptr, cu_tiles_ptr, out_ptr, num_rows, num_tokens, most, window,
    H: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr, MOST: tl.constexpr,
    BUSY: tl.constexpr, LEAST: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head = tl.program_id(1)
    let_next_start()
    wait_for_inputs()
    if token < tl.load(query_start_ptr + num_rows):
        row = find_row(query_start_ptr, token, num_rows)
        tiled = tl.load(cu_tiles_ptr + row + 1) > tl.load(cu_tiles_ptr + row)  # else another kernel has the row
        begin = tl.load(query_start_ptr + row)
        query_len = tl.load(query_start_ptr + row + 1) - begin
        length = tl.load(lens_ptr + row)
        first_query = length - query_len + (token - begin) // M * M
        high = tl.minimum(first_query + M, length)
        _, low, _, _ = _bounds(first_query, window, M, TILE, WINDOWED)
        num_tiles = tl.maximum(tl.load(cu_tiles_ptr + num_rows), 1)
        pieces = tl.cdiv(high - low, _piece(low, high, num_tiles, most, H, BUSY, LEAST))
        if tiled & (pieces > 1):
            column = tl.arange(0, D_PAD)
            piece = tl.arange(0, MOST)
            live = piece < pieces
            at = (piece.to(tl.int64) * num_tokens + token) * H + head
            lse = tl.load(lse_ptr + at, mask=live, other=float("-inf"))
            inside = live[:, None] & (column < D)[None, :]
            part = tl.load(part_ptr + at[:, None] * D + column[None, :], mask=inside, other=0.0)
            weight = tl.exp2(lse - tl.max(lse, axis=0))
            joined = tl.sum(part * weight[:, None], axis=0) / tl.sum(weight, axis=0)
            spot = (token.to(tl.int64) * H + head) * D + column
            tl.store(out_ptr + spot, joined.to(out_ptr.dtype.element_ty), mask=column < D)


def query_tile(dtype_bytes: int, head_dim: int) -> int:
    """Queries in one tile."""
    if dtype_bytes == 4:
        return 32
    return 128 if head_dim <= 128 and shared_memory() >= ROOMY else 64


def key_tile(dtype_bytes: int, head_dim: int) -> int:
    """Cached tokens in one tile."""
    if dtype_bytes == 4:
        return 32
    if shared_memory() < ROOMY:
        return 64 if head_dim <= 128 else 32
    return 128 if head_dim <= 128 else 64


def max_pieces(tokens: int, heads: int, dtype_bytes: int, head_dim: int, busy: int) -> int:
    """Pieces that what a tile sees may be cut into, for steps of so many tokens; `busy` programs fill the device."""
    tiles = -(-tokens // query_tile(dtype_bytes, head_dim))
    return min(MAX_PIECES, max(1, busy // (heads * tiles)))


def prefill_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    meta: AttentionMeta,
    cu_tiles: torch.Tensor,
    max_tiles: int,
    busy: int,
    out: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> None:
    """The rows that have tiles: q and out ``[T, H, D]``, kv ``[N, 2, H_kv, B, D]``.

    cu_tiles int32 ``[R + 1]``: running count of query tiles of `query_tile` each; max_tiles bounds its last entry;
    `busy` programs keep the device full.
    """
    tokens, heads, dim = q.shape
    most = max_pieces(tokens, heads, q.dtype.itemsize, dim, busy)
    part = lse = out  # never followed
    if most > 1:
        part = torch.empty((most, tokens, heads, dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((most, tokens, heads), dtype=torch.float32, device=q.device)
    exact = q.dtype == torch.float32
    deep = pow2(dim) <= 128 and shared_memory() >= ROOMY
    shape = _shape(q, busy, windowed=window is not None)
    _prefill[(heads, max_tiles, most)](
        q,
        kv,
        meta.block_table,
        meta.seq_lens,
        meta.query_start,
        cu_tiles,
        out,
        part,
        lse,
        meta.seq_lens.shape[0],
        tokens,
        most,
        q.stride(0),
        meta.block_table.stride(0),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        scale * LOG2E.value,
        softcap or 1.0,
        window or 0,
        G=heads // kv.shape[2],
        B=kv.shape[3],
        SPLIT=most > 1,
        CAPPED=softcap is not None,
        PRECISION="ieee" if exact else "tf32",
        num_warps=4 if exact or shared_memory() < ROOMY else 8,
        num_stages=1 if exact else 3 if deep else 2,
        **shape,
        **LAUNCH,
    )
    if most > 1:
        rows, past = meta.seq_lens.shape[0], (meta.seq_lens, meta.query_start, cu_tiles)
        grid = (tokens, heads)
        _join[grid](
            part, lse, *past, out, rows, tokens, most, window or 0, MOST=MAX_PIECES, num_warps=1, **shape, **LAUNCH
        )


def _shape(q: torch.Tensor, busy: int, *, windowed: bool) -> dict[str, int | bool]:
    """What both kernels are compiled for."""
    padded = max(16, pow2(q.shape[2]))
    tile = key_tile(q.dtype.itemsize, q.shape[2])
    return {
        "H": q.shape[1],
        "D": q.shape[2],
        "D_PAD": padded,
        "M": query_tile(q.dtype.itemsize, q.shape[2]),
        "TILE": tile,
        "BUSY": busy,
        "LEAST": max(LEAST_PIECE, tile),
        "WINDOWED": windowed,
    }
