"""Decode attention whose keys and values are on their way before its queries are there (Hopper).

What a row has in the cache was written by steps before this one. So one warp fills the ring of tiles while the product
of q, k and v still runs; the others wait for that product alone. They norm and rotate (QK norm, rotation), write the
new key and value to the cache, lay them into their tile, and go through the tiles as attention_decode does: the same
line of tiles, the same shares, the same parts for `_merge`. The tokens of a tile are the tall side of both products,
the query heads of a KV head the narrow one.

Legend: R rows, H heads, G query heads a KV head, D head dim, B block size, N columns: G, the new key, the new value.
"""

import numpy as np
import torch

from octavo.kernels.ahead import Ints, Longs
from octavo.kernels.context import AttentionMeta, Projected
from octavo.kernels.triton.attention_decode import TILE, DecodePlan, deal_tiles
from octavo.kernels.triton.attention_tile import LOG2E
from octavo.kernels.triton.common import LAUNCH, find_row, let_next_start, wait_for_inputs
from octavo.kernels.triton.hopper import HOPPER, brings, cache_tiles
from octavo.kernels.triton.prologue import operands, rotary

# Two programs have as much on the way as one of twice the stages, and while one of them begins or ends a row the other
# goes on.
PROGRAMS_PER_MULTIPROCESSOR = 2
_STAGES = 3
_JOIN = 3  # tiles that take about as long as adding up the parts of a row
_FEW = 6  # query heads that leave room for key and value in 8 columns
_MOST = 14  # and in 16


def suits(group: int, head_dim: int, dtype_bytes: int, block_size: int, window: int | None) -> bool:
    """Whether steps of one token a row can be computed so."""
    return brings(head_dim, block_size, dtype_bytes) and group <= _MOST and window is None


def takes_projected(projected: Projected) -> bool:
    """Whether it also does what comes between the product of q, k and v and attention."""
    both = (projected.q_norm is None) == (projected.k_norm is None)
    return projected.head_dim == 128 and both and rotary(projected) in (0, 128)


def deal_early(out: Ints, visible: Longs, num_kv_heads: int, programs: int) -> int:
    """As `deal_tiles`. Where it takes no longer, each KV head of a row is one program's: all rows are as long as the
    longest then, in the line alone, and nothing is left to be added up."""
    share = deal_tiles(out, visible, num_kv_heads, programs)
    lines, multiprocessors = visible.size * num_kv_heads, max(1, programs // PROGRAMS_PER_MULTIPROCESSOR)
    if not 0 < lines <= programs:
        return share
    longest = int(-(-visible.max() // TILE))
    evenly = -(-int(out[visible.size]) * num_kv_heads // multiprocessors)
    if -(-lines // multiprocessors) * longest > evenly + _JOIN:
        return share
    out[:] = np.arange(visible.size + 1) * longest
    return longest


def early_attention(
    source: torch.Tensor | Projected,
    kv: torch.Tensor,
    meta: AttentionMeta,
    plan: DecodePlan,
    out: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> None:
    """As `decode_attention`, of q ``[R, H, D]``, or of what `qkv_prologue` takes, whose work it does then.

    The blocks of a layer lie whole: kv ``[N, 2, H_kv, B, D]`` may be strided in its first dim alone.
    """
    _, _, kv_heads, block_size, dim = kv.shape
    group = out.shape[1] // kv_heads
    own = source if isinstance(source, Projected) else None
    q, q_norm, k_norm, cos_sin, turn = operands(source) if isinstance(source, Projected) else [source] * 5
    kv_tiles, block_rows = cache_tiles(kv, HALF.value)
    _decode_early[(plan.programs,)](
        q,
        q_norm,
        k_norm,
        cos_sin,
        turn,
        meta.slots,
        kv,
        kv_tiles,
        meta.block_table,
        meta.seq_lens,
        plan.cu_tiles,
        plan.share,
        out,
        plan.part,
        plan.lse,
        plan.tickets,
        meta.seq_lens.shape[0],
        q.stride(0),
        meta.block_table.stride(0),
        kv.stride(0),
        kv.stride(1),
        block_rows,
        scale * LOG2E.value,
        softcap or 1.0,
        0.0 if own is None else own.eps,
        STAGES=_STAGES,
        H_KV=kv_heads,
        G=group,
        D=dim,
        B=block_size,
        N=8 if group <= _FEW else 16,
        OWN=own is not None,
        NORM=own is not None and own.q_norm is not None,
        ROTARY=0 if own is None else rotary(own),
        CAPPED=softcap is not None,
        num_warps=4,
        # Of eight warps (three idle), few enough that the kernels before and behind have room beside it.
        maxnreg=96 if group <= _FEW else 112,
        **LAUNCH,
    )


if HOPPER:
    from octavo.kernels.triton.attention_early_heads import given, lay_in, norms, take
    from octavo.kernels.triton.attention_early_ring import HALF, find, place, produce
    from octavo.kernels.triton.attention_early_tile import attend_tile, leave, nothing_yet
    from octavo.kernels.triton.hopper import fence_async_shared, gl, gluon, mbarrier, recast

    _TILE = gl.constexpr(TILE)

    @gluon.jit
    def _seat(at, row, first, last, cu_ptr, lens_ptr, slots_ptr, H_KV: gl.constexpr, OWN: gl.constexpr):
        """Of place `at`: row, the counts of tiles round it, KV head, tile, the row's length, its new token's slot."""
        row, first, last = find(at, row, first, last, cu_ptr, H_KV)
        head, tile = place(at, first, last, H_KV)
        slot = gl.to_tensor(0).to(gl.int64)
        if OWN:
            slot = gl.load(slots_ptr + row)
        return row, first, last, head, tile, gl.load(lens_ptr + row), slot

    @gluon.jit
    def _consume(
        k, v, heads, weights_t, there, free, q_ptr, q_norm_ptr, k_norm_ptr, cos_sin_ptr, turn_ptr, slots_ptr, kv_ptr,
        lens_ptr, cu_ptr, out_ptr, part_ptr, lse_ptr, tickets_ptr, begin, end, share, row, first, last,
        stride_q, stride_block, stride_half, scale_log2, softcap, eps,
        STAGES: gl.constexpr, H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr, B: gl.constexpr, N: gl.constexpr,
        OWN: gl.constexpr, NORM: gl.constexpr, ROTARY: gl.constexpr, CAPPED: gl.constexpr,
    ):  # fmt: skip
        HALVES: gl.constexpr = D // HALF
        TILE: gl.constexpr = _TILE
        GROUPS: gl.constexpr = TILE // 8
        dtype: gl.constexpr = k.dtype
        mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
        # All rows of a column in one thread, the same in every warp.
        wide: gl.constexpr = gl.BlockedLayout([N, 2], [1, 32], [4, 1], [1, 0])
        eight: gl.constexpr = gl.BlockedLayout([8, 2], [1, 32], [4, 1], [1, 0])
        column: gl.constexpr = gl.SliceLayout(0, eight)
        k_groups = recast(k, dtype, [STAGES * HALVES * GROUPS, 8, HALF], k.layout)
        v_groups = recast(v, dtype, [STAGES * HALVES * GROUPS, 8, HALF], v.layout)
        q_low, q_high = norms(q_norm_ptr, NORM, wide)
        k_low, k_high = norms(k_norm_ptr, NORM, wide)
        done = 0
        at = begin
        head, tile, length, slot = 0, 0, 0, gl.to_tensor(0).to(gl.int64)
        if at < end:
            row, first, last, head, tile, length, slot = _seat(
                at, row, first, last, cu_ptr, lens_ptr, slots_ptr, H_KV, OWN
            )
        wait_for_inputs()
        somewhere = row * (at < end).to(gl.int32)
        low, high, cos, sin = given(
            q_ptr, cos_sin_ptr, turn_ptr, somewhere, head, stride_q, OWN, ROTARY, H_KV, G, D, N, wide
        )
        while at < end:
            tiles = last - first
            count = gl.minimum(tiles - tile, end - at)
            # What comes next is asked for now, and used when these tiles are done.
            next_at = at + count
            after = row, first, last, head, tile, length, slot
            if next_at < end:
                after = _seat(next_at, row, first, last, cu_ptr, lens_ptr, slots_ptr, H_KV, OWN)
            key_low = gl.zeros((HALF,), gl.float32, layout=column)
            key_high, value_low, value_high = key_low, key_low, key_low
            if OWN:
                key_low, key_high, value_low, value_high = take(
                    heads, low, high, cos, sin, q_low, q_high, k_low, k_high, eps, kv_ptr, slot, head,
                    tile + count == tiles, stride_block, stride_half, NORM, ROTARY, G, D, B, N, wide, column,
                )  # fmt: skip
            else:
                heads.index(0).store(low)
                if HALVES > 1:
                    heads.index(1).store(high)
            fence_async_shared()
            low, high, cos, sin = given(
                q_ptr, cos_sin_ptr, turn_ptr, after[0], after[3], stride_q, OWN, ROTARY, H_KV, G, D, N, wide
            )
            best, total, acc_low, acc_high = nothing_yet(N, mma)
            for i in range(count):
                stage = done % STAGES
                left = length - (tile + i) * TILE
                mbarrier.wait(there.index(stage), done // STAGES & 1)
                if (left <= TILE) & (left > 0):  # behind a row there may be tiles without tokens
                    lay_in(
                        k_groups, v_groups, stage, left - 1, key_low, key_high, value_low, value_high,
                        HALVES, GROUPS, B, OWN, eight,
                    )  # fmt: skip
                    fence_async_shared()
                best, total, acc_low, acc_high = attend_tile(
                    k, v, heads, weights_t, stage, left, best, total, acc_low, acc_high, scale_log2, softcap,
                    HALVES, N, CAPPED, mma,
                )  # fmt: skip
                mbarrier.arrive(free.index(stage), count=1)
                done += 1
            leave(
                out_ptr, part_ptr, lse_ptr, tickets_ptr, row, head, at - tile, tiles, share,
                (at > begin).to(gl.int32), count == tiles, best, total, acc_low, acc_high, H_KV, G, D, N, mma,
            )  # fmt: skip
            at = next_at
            row, first, last, head, tile, length, slot = after

    @gluon.jit(
        do_not_specialize=["num_rows", "block_rows"],
        do_not_specialize_on_alignment=[
            "table_ptr", "lens_ptr", "cu_ptr", "share_ptr", "turn_ptr", "slots_ptr",
        ],
    )  # fmt: skip
    def _decode_early(
        q_ptr, q_norm_ptr, k_norm_ptr, cos_sin_ptr, turn_ptr, slots_ptr, kv_ptr, kv_tiles,
        table_ptr, lens_ptr, cu_ptr, share_ptr, out_ptr, part_ptr, lse_ptr, tickets_ptr, num_rows,
        stride_q, stride_table, stride_block, stride_half, block_rows, scale_log2, softcap, eps,
        STAGES: gl.constexpr, H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr, B: gl.constexpr, N: gl.constexpr,
        OWN: gl.constexpr, NORM: gl.constexpr, ROTARY: gl.constexpr, CAPPED: gl.constexpr,
    ):  # fmt: skip
        let_next_start()
        HALVES: gl.constexpr = D // HALF
        dtype: gl.constexpr = kv_tiles.dtype
        laid: gl.constexpr = kv_tiles.layout
        k = gl.allocate_shared_memory(dtype, [STAGES * HALVES, _TILE, HALF], laid)
        v = gl.allocate_shared_memory(dtype, [STAGES * HALVES, _TILE, HALF], laid)
        heads = gl.allocate_shared_memory(dtype, [HALVES, N, HALF], laid)
        weights_t = gl.allocate_shared_memory(dtype, [N, _TILE], laid)
        there = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for s in gl.static_range(STAGES):
            mbarrier.init(there.index(s), count=1)
            mbarrier.init(free.index(s), count=1)
        fence_async_shared()
        share = gl.load(share_ptr)
        begin = gl.program_id(0) * share
        end = gl.minimum(begin + share, gl.load(cu_ptr + num_rows) * H_KV)
        row = find_row(cu_ptr, begin // H_KV, num_rows)
        first, last = gl.load(cu_ptr + row), gl.load(cu_ptr + row + 1)
        gl.warp_specialize(
            [
                (
                    _consume,
                    (
                        k, v, heads, weights_t, there, free, q_ptr, q_norm_ptr, k_norm_ptr, cos_sin_ptr, turn_ptr,
                        slots_ptr, kv_ptr, lens_ptr, cu_ptr, out_ptr, part_ptr, lse_ptr, tickets_ptr,
                        begin, end, share, row, first, last, stride_q, stride_block, stride_half,
                        scale_log2, softcap, eps, STAGES, H_KV, G, D, B, N, OWN, NORM, ROTARY, CAPPED,
                    ),
                ),
                (
                    produce,
                    (
                        kv_tiles, k, v, there, free, table_ptr, lens_ptr, cu_ptr, begin, end, row, first, last,
                        stride_table, block_rows, STAGES, H_KV, D, B, OWN,
                    ),
                ),
            ],
            [1],
            [48],
        )  # fmt: skip
