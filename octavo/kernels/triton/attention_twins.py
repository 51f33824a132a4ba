"""Prefill attention on Hopper: two warps bring keys and values, two groups of four take half a tile of queries each.

What `attention_prefill` computes, from the same list of tiles, with the same pieces for `_join`. A group weighs one
tile while the tensor cores have the values of the tile before and the keys of the other group (FlashAttention-3, Shah
et al. 2024). Keys and values come by bulk copies into rings, over the block table, and are multiplied where they lie.
Programs stay: while a result is written, keys, values and queries of the next are on their way.

Legend: T tokens, R rows, H heads, G heads a KV head, D head dim, B block size; a line is a query of one head.
"""

import torch

from octavo.kernels.context import AttentionMeta
from octavo.kernels.triton.attention_tile import LOG2E
from octavo.kernels.triton.attention_tiling import Tiles
from octavo.kernels.triton.attention_twins_tile import LINES, TILE
from octavo.kernels.triton.common import LAUNCH, let_next_start, wait_for_inputs
from octavo.kernels.triton.hopper import HOPPER, brings, cache_tiles
from octavo.kernels.triton.target import target_here

_STAGES = 3


def suits(group: int, head_dim: int, dtype_bytes: int, block_size: int, window: int | None) -> bool:
    """Whether tiles of `LINES` can be computed so."""
    return brings(head_dim, block_size, dtype_bytes) and group <= LINES and window is None


def prefill_by_twins(
    q: torch.Tensor,
    kv: torch.Tensor,
    meta: AttentionMeta,
    tiles: Tiles,
    programs: int,
    out: torch.Tensor,
    part: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> None:
    """q and out ``[T, H, D]``, kv ``[N, 2, H_kv, B, D]``; `programs` at most find work; pieces go to part
    ``[S, T, H, D]`` and lse ``[S, T, H]``."""
    _, _, kv_heads, block_size, dim = kv.shape
    kv_tiles, block_rows = cache_tiles(kv, HALF.value)
    _twins[(min(target_here().multiprocessors, programs),)](
        q,
        kv_tiles,
        meta.block_table,
        meta.seq_lens,
        meta.query_start,
        tiles.running,
        out,
        part,
        lse,
        meta.seq_lens.shape[0],
        q.shape[0],
        q.stride(0),
        meta.block_table.stride(0),
        block_rows,
        scale * LOG2E.value,
        softcap or 1.0,
        STAGES=_STAGES,
        H_KV=kv_heads,
        G=q.shape[1] // kv_heads,
        D=dim,
        B=block_size,
        QUERIES=tiles.tiling.queries,
        LEAST=tiles.tiling.least,
        CAPPED=softcap is not None,
        num_warps=4,
        **LAUNCH,
    )


if HOPPER:
    from octavo.kernels.triton.attention_early_heads import lay_in
    from octavo.kernels.triton.attention_early_ring import HALF
    from octavo.kernels.triton.attention_twins_ring import bring_keys, bring_values
    from octavo.kernels.triton.attention_twins_tile import (
        HALF_LINES,
        add_up,
        added_up,
        asked,
        leave,
        look,
        match,
        weigh,
    )
    from octavo.kernels.triton.attention_twins_work import SLIP, SLIPS, hear
    from octavo.kernels.triton.hopper import fence_async_shared, gl, gluon, mbarrier, recast, warpgroup_mma_wait

    _TILE = gl.constexpr(TILE)

    @gluon.jit
    def _clear_behind(v, stage, left, D: gl.constexpr, B: gl.constexpr):
        """Zeros behind the last of `left` tokens of a tile, in its block. Both groups lay down the same ones."""
        eight: gl.constexpr = gl.BlockedLayout([8, 2], [1, 32], [4, 1], [1, 0])
        GROUPS: gl.constexpr = _TILE // 8
        HALVES: gl.constexpr = D // HALF
        groups = recast(v, v.dtype, [v.shape[0] * HALVES * GROUPS, 8, HALF], v.layout)
        nothing = gl.zeros((HALF,), gl.float32, layout=gl.SliceLayout(0, eight))
        lay_in(groups, groups, stage, left - 1, nothing, nothing, nothing, nothing, HALVES, GROUPS, B, False, eight)
        fence_async_shared()

    @gluon.jit
    def _consume(
        GROUP: gl.constexpr, k, v, heads, k_there, k_free, v_there, v_free, slips, told, heard, q_ptr, out_ptr,
        part_ptr, lse_ptr, num_tokens, stride_q, scale_log2, softcap,
        STAGES: gl.constexpr, H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr, B: gl.constexpr,
        QUERIES: gl.constexpr, CAPPED: gl.constexpr,
    ):  # fmt: skip
        TILE: gl.constexpr = _TILE
        kind: gl.constexpr = k.dtype
        mma_s: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
        mma_o: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
        operand: gl.constexpr = gl.DotOperandLayout(0, mma_o, 2)
        lines: gl.constexpr = gl.SliceLayout(1, mma_s)
        wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
        mine = heads.index(GROUP)
        # Scores are scaled as they become weights, by one instruction.
        factor = scale_log2
        if CAPPED:
            factor = gl.to_tensor(LOG2E)
        wait_for_inputs()
        done = 0
        said = 0
        _, head, index, first, left, length, low, high = hear(slips, told, heard, said, 4)
        queries = asked(q_ptr, first, left, head, stride_q, GROUP, G, D, QUERIES, wide)
        while low < high:
            mine.store(queries)
            fence_async_shared()
            line = GROUP * HALF_LINES + gl.arange(0, HALF_LINES, layout=lines)
            query_at = gl.minimum(length - left + line // G, length - 1)
            # From here on some of this group's lines do not see a tile whole.
            clear = gl.minimum((length - left + GROUP * HALF_LINES // G + 1) // TILE * TILE, high)
            best = gl.full((HALF_LINES,), float("-inf"), gl.float32, layout=lines)
            total = gl.zeros((HALF_LINES,), gl.float32, layout=lines)
            acc = gl.zeros((HALF_LINES, D), gl.float32, layout=mma_o)
            scores = warpgroup_mma_wait(0, deps=[match(k, mine, done, k_there, STAGES, mma_s)])
            mbarrier.arrive(k_free.index(done % STAGES), count=1)
            best, total, _, weights = weigh(
                scores, low, query_at, best, total, factor, scale_log2, softcap, CAPPED, True, mma_s, operand, kind
            )
            mbarrier.wait(v_there.index(done % STAGES), done // STAGES & 1)
            done += 1
            for at in range(low + TILE, clear, TILE):
                best, total, weights, acc = look(
                    k, v, mine, done, k_there, k_free, v_there, v_free, at, query_at, best, total, weights, acc,
                    factor, scale_log2, softcap, STAGES, CAPPED, False, mma_s, mma_o,
                )  # fmt: skip
                done += 1
            for at in range(gl.maximum(low + TILE, clear), high, TILE):
                best, total, weights, acc = look(
                    k, v, mine, done, k_there, k_free, v_there, v_free, at, query_at, best, total, weights, acc,
                    factor, scale_log2, softcap, STAGES, CAPPED, True, mma_s, mma_o,
                )  # fmt: skip
                done += 1
            last = done - 1
            behind = length - (low + (high - low - 1) // TILE * TILE)
            if behind < TILE:
                _clear_behind(v, last % STAGES, behind, D, B)
            adding = add_up(v, weights, acc, last, STAGES)
            said += 1
            _, next_head, next_index, next_first, next_left, length, next_low, next_high = hear(
                slips, told, heard, said, 4
            )
            queries = asked(q_ptr, next_first, next_left, next_head, stride_q, GROUP, G, D, QUERIES, wide)
            acc = added_up(adding, weights, last, v_free, STAGES)
            leave(
                out_ptr, part_ptr, lse_ptr, mine, index, first, left, head, num_tokens, best * factor, total, acc,
                GROUP, H_KV, G, D, QUERIES, lines, mma_o, wide,
            )  # fmt: skip
            head, index, first, left, low, high = next_head, next_index, next_first, next_left, next_low, next_high

    @gluon.jit(
        do_not_specialize=["num_rows", "num_tokens", "block_rows"],
        do_not_specialize_on_alignment=["table_ptr", "lens_ptr", "start_ptr", "cu_ptr"],
    )  # fmt: skip
    def _twins(
        q_ptr, kv_tiles, table_ptr, lens_ptr, start_ptr, cu_ptr, out_ptr, part_ptr, lse_ptr, num_rows, num_tokens,
        stride_q, stride_table, block_rows, scale_log2, softcap,
        STAGES: gl.constexpr, H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr, B: gl.constexpr,
        QUERIES: gl.constexpr, LEAST: gl.constexpr, CAPPED: gl.constexpr,
    ):  # fmt: skip
        let_next_start()
        kind: gl.constexpr = kv_tiles.dtype
        laid: gl.constexpr = kv_tiles.layout
        bars: gl.constexpr = mbarrier.MBarrierLayout()
        k = gl.allocate_shared_memory(kind, [STAGES, _TILE, D], laid)
        v = gl.allocate_shared_memory(kind, [STAGES, _TILE, D], laid)
        heads = gl.allocate_shared_memory(kind, [2, HALF_LINES, D], laid)
        slips = gl.allocate_shared_memory(gl.int32, [SLIPS * SLIP, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
        k_there = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
        k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
        v_there = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
        v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
        told = gl.allocate_shared_memory(gl.int64, [SLIPS, 1], bars)
        heard = gl.allocate_shared_memory(gl.int64, [SLIPS, 1], bars)
        for s in gl.static_range(STAGES):
            mbarrier.init(k_there.index(s), count=1)
            mbarrier.init(k_free.index(s), count=2)
            mbarrier.init(v_there.index(s), count=1)
            mbarrier.init(v_free.index(s), count=2)
        for s in gl.static_range(SLIPS):
            mbarrier.init(told.index(s), count=1)
            mbarrier.init(heard.index(s), count=3)
        fence_async_shared()
        gl.warp_specialize(
            [
                (
                    _consume,
                    (
                        0, k, v, heads, k_there, k_free, v_there, v_free, slips, told, heard, q_ptr, out_ptr,
                        part_ptr, lse_ptr, num_tokens, stride_q, scale_log2, softcap, STAGES, H_KV, G, D, B, QUERIES,
                        CAPPED,
                    ),
                ),
                (
                    _consume,
                    (
                        1, k, v, heads, k_there, k_free, v_there, v_free, slips, told, heard, q_ptr, out_ptr,
                        part_ptr, lse_ptr, num_tokens, stride_q, scale_log2, softcap, STAGES, H_KV, G, D, B, QUERIES,
                        CAPPED,
                    ),
                ),
                (
                    bring_keys,
                    (
                        kv_tiles, k, k_there, k_free, slips, told, heard, table_ptr, lens_ptr, start_ptr, cu_ptr,
                        num_rows, stride_table, block_rows, STAGES, H_KV, D, B, QUERIES, LEAST, _TILE,
                    ),
                ),
                (
                    bring_values,
                    (
                        kv_tiles, v, v_there, v_free, slips, told, heard, table_ptr, stride_table, block_rows,
                        STAGES, H_KV, D, B, _TILE,
                    ),
                ),
            ],
            [4, 1, 1],
            [232, 32, 32],
        )  # fmt: skip
