"""Decode attention whose keys and values are on their way before its queries are there (Hopper).

What a row has in the cache was written by steps before this one. So one warp fills the ring of tiles while the product
of q, k and v still runs; the others wait for that product alone. They norm and rotate (QK norm, rotation), write the
new key and value to the cache, lay them into their tile, and go through the tiles as attention_decode does: the same
line of tiles, the same shares, the same parts for `_merge`. The tokens of a tile are the tall side of both products,
the query heads of a KV head the narrow one.

Legend: R rows, H heads, G query heads a KV head, D head dim, B block size, N columns: G, the new key, the new value.
"""

import torch

from octavo.kernels.context import AttentionMeta, Projected
from octavo.kernels.triton.attention_decode import TILE, DecodePlan
from octavo.kernels.triton.attention_tile import LOG2E, softcap_logits
from octavo.kernels.triton.common import LAUNCH, find_row, let_next_start, wait_for_inputs
from octavo.kernels.triton.hopper import HOPPER, tiles
from octavo.kernels.triton.prologue import operands, rotary

_STAGES = 4
_MOST_ROWS = 1 << 30
_FEW = 6  # query heads that leave room for key and value in 8 columns
_MOST = 14  # and in 16


def suits(rows: int, group: int, head_dim: int, dtype_bytes: int, block_size: int, window: int | None) -> bool:
    """Whether steps of one token for each of so many rows are computed so."""
    cut = head_dim in (64, 128) and block_size in (8, 16, 32, 64)
    return HOPPER and rows <= _MOST_ROWS and cut and dtype_bytes == 2 and group <= _MOST and window is None


def takes_projected(projected: Projected) -> bool:
    """Whether it also does what comes between the product of q, k and v and attention."""
    both = (projected.q_norm is None) == (projected.k_norm is None)
    return projected.head_dim == 128 and both and rotary(projected) in (0, 128)


def early_attention(
    given: torch.Tensor | Projected,
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
    blocks, _, kv_heads, block_size, dim = kv.shape
    group = out.shape[1] // kv_heads
    own = isinstance(given, Projected)
    q, q_norm, k_norm, cos_sin, turn = operands(given) if isinstance(given, Projected) else [given] * 5
    block_rows = kv.stride(0) // dim
    rows = kv.as_strided(((blocks - 1) * block_rows + 2 * kv_heads * block_size, dim), (dim, 1))
    _decode_early[(plan.programs,)](
        q,
        q_norm,
        k_norm,
        cos_sin,
        turn,
        meta.slots,
        kv,
        tiles(rows, [block_size, _HALF.value]),
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
        given.eps if isinstance(given, Projected) else 0.0,
        STAGES=_STAGES,
        H_KV=kv_heads,
        G=group,
        D=dim,
        B=block_size,
        N=8 if group <= _FEW else 16,
        OWN=own,
        NORM=isinstance(given, Projected) and given.q_norm is not None,
        ROTARY=rotary(given) if isinstance(given, Projected) else 0,
        CAPPED=softcap is not None,
        num_warps=4,
        # Of eight warps (three idle), few enough that the kernels before and behind have room beside it.
        maxnreg=96 if group <= _FEW else 112,
        **LAUNCH,
    )


if HOPPER:
    from octavo.kernels.triton.hopper import (
        bring,
        fence_async_shared,
        gl,
        gluon,
        mbarrier,
        meet,
        recast,
        warpgroup_mma,
        warpgroup_mma_init,
        warpgroup_mma_wait,
    )

    _TILE = gl.constexpr(TILE)
    _NOWHERE = gl.constexpr((1 << 31) - (1 << 20))  # a row behind all that there are
    _HALF = gl.constexpr(64)  # columns that bulk copies lay down at once

    @gluon.jit
    def _find(at, row, first, last, cu_ptr, H_KV: gl.constexpr):
        """The row of place `at` in the line of tiles, from `row` on, and the running counts before and behind it."""
        while last * H_KV <= at:
            row += 1
            first = last
            last = gl.load(cu_ptr + row + 1)
        return row, first, last

    @gluon.jit
    def _place(at, first, last, H_KV: gl.constexpr):
        """The KV head of place `at`, and which of its tiles it is."""
        place = at - first * H_KV
        head = place // (last - first)
        return head, place - head * (last - first)

    @gluon.jit
    def _rows_of(table, tile, left, head, block_rows, B: gl.constexpr):
        """Where each block of a tile with `left` tokens from its first on begins; behind those, where zeros are."""
        BLOCKS: gl.constexpr = _TILE // B
        rows = ()
        for j in gl.static_range(BLOCKS):
            block = gl.load(table + tile * BLOCKS + j, mask=j * B < left, other=0)
            rows = rows + (gl.where(j * B < left, block * block_rows + head * B, _NOWHERE),)  # noqa: RUF005  # type: ignore[assignment]
        return rows

    @gluon.jit
    def _bring_blocks(
        kv_tiles, k, v, there, stage, rows, begin, end, H_KV: gl.constexpr, D: gl.constexpr, B: gl.constexpr
    ):
        """Blocks ``begin .. end`` of a tile."""
        HALVES: gl.constexpr = D // _HALF
        for j in gl.static_range(_TILE // B):
            wanted = (j >= begin) & (j < end)
            for h in gl.static_range(HALVES):
                k_to = k.index(stage * HALVES + h).slice(j * B, B)
                v_to = v.index(stage * HALVES + h).slice(j * B, B)
                bring(kv_tiles, [rows[j], h * _HALF], there, k_to, pred=wanted)
                bring(kv_tiles, [rows[j] + H_KV * B, h * _HALF], there, v_to, pred=wanted)

    @gluon.jit
    def _produce(
        stage: gl.constexpr, kv_tiles, k, v, there, free, table_ptr, lens_ptr, cu_ptr, begin, end, row, first, last,
        stride_table, block_rows, H_KV: gl.constexpr, D: gl.constexpr, B: gl.constexpr, OWN: gl.constexpr,
        STAGES: gl.constexpr,
    ):  # fmt: skip
        """Every so manieth tile of ``begin .. end`` of the line, into one place of the ring. Each place has a warp of
        its own, since blocks must be looked up before they can be asked for, and that takes as long as reading them."""
        BLOCKS: gl.constexpr = _TILE // B
        BYTES: gl.constexpr = _TILE * D * 2 * 2
        for at in range(begin + stage, end, STAGES):
            times = (at - begin) // STAGES
            row, first, last = _find(at, row, first, last, cu_ptr, H_KV)
            head, tile = _place(at, first, last, H_KV)
            left = gl.load(lens_ptr + row) - tile * _TILE
            rows = _rows_of(table_ptr + row.to(gl.int64) * stride_table, tile, left, head, block_rows, B)
            # The block of the newest token is another kernel's to write, unless this one does.
            ready = BLOCKS
            if times > 0:
                mbarrier.wait(free.index(stage), (times - 1) & 1)
            elif not OWN:
                ready = gl.minimum((left - 1) // B, BLOCKS)
            mbarrier.expect(there.index(stage), BYTES)
            _bring_blocks(kv_tiles, k, v, there.index(stage), stage, rows, 0, ready, H_KV, D, B)
            if not OWN:  # noqa: SIM102 - one is known to the compiler
                if times == 0:
                    wait_for_inputs()
                    _bring_blocks(kv_tiles, k, v, there.index(stage), stage, rows, ready, BLOCKS, H_KV, D, B)

    @gluon.jit
    def _given(
        q_ptr, cos_sin_ptr, turn_ptr, row, head, stride_q,
        OWN: gl.constexpr, ROTARY: gl.constexpr, H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr,
        N: gl.constexpr, layout: gl.constexpr,
    ):  # fmt: skip
        """Of one row and KV head: queries, and if OWN key and value behind them, in two halves ``[N, 64]``, and the
        cosines and sines of its place ``[64]``."""
        HALF: gl.constexpr = _HALF
        n = gl.arange(0, N, layout=gl.SliceLayout(1, layout))
        c = gl.arange(0, HALF, layout=gl.SliceLayout(0, layout))
        place = head * G + n
        if OWN:
            place = gl.where(n < G, place, gl.where(n == G, H_KV * G + head, H_KV * G + H_KV + head))
        here = (n < (G + 2 if OWN else G))[:, None]
        at = q_ptr + row.to(gl.int64) * stride_q + (place * D)[:, None] + c[None, :]
        low = gl.load(at, mask=here, other=0.0)
        high = gl.load(at + (D - HALF), mask=here, other=0.0)
        cos, sin = (
            gl.full((HALF,), 1.0, gl.float32, layout=gl.SliceLayout(0, layout)),
            gl.zeros((HALF,), gl.float32, layout=gl.SliceLayout(0, layout)),
        )
        if ROTARY > 0:
            angles = cos_sin_ptr + gl.load(turn_ptr + row) * ROTARY + c
            cos, sin = gl.load(angles), gl.load(angles + HALF)
        return low, high, cos, sin

    @gluon.jit
    def _turned(
        low, high, cos, sin, q_low, q_high, k_low, k_high, eps,
        NORM: gl.constexpr, ROTARY: gl.constexpr, G: gl.constexpr, D: gl.constexpr, N: gl.constexpr,
        layout: gl.constexpr,
    ):  # fmt: skip
        """Queries and key normed and rotated, the value as it was; fp32."""
        n = gl.arange(0, N, layout=gl.SliceLayout(1, layout))
        is_key, is_value = (n == G)[:, None], (n == G + 1)[:, None]
        kind: gl.constexpr = low.dtype
        low, high = low.to(gl.float32), high.to(gl.float32)
        new_low, new_high = low, high
        if NORM:
            scale = gl.rsqrt(gl.sum(low * low + high * high, axis=1) / D + eps)[:, None]
            new_low = (low * scale * gl.where(is_key, k_low[None, :], q_low[None, :])).to(kind).to(gl.float32)
            new_high = (high * scale * gl.where(is_key, k_high[None, :], q_high[None, :])).to(kind).to(gl.float32)
        if ROTARY > 0:
            cos, sin = cos[None, :], sin[None, :]
            new_low, new_high = new_low * cos - new_high * sin, new_high * cos + new_low * sin
        return gl.where(is_value, low, new_low), gl.where(is_value, high, new_high)

    @gluon.jit
    def _row(heads, index: gl.constexpr, N: gl.constexpr, layout: gl.constexpr, into: gl.constexpr):
        """One row of ``[N, 64]``."""
        n = gl.arange(0, N, layout=gl.SliceLayout(1, layout))
        return gl.convert_layout(gl.sum(gl.where((n == index)[:, None], heads, 0.0), axis=0), into)

    @gluon.jit
    def _put(rows, group, last, new, layout: gl.constexpr, PUT: gl.constexpr, CLEAR: gl.constexpr):
        """Into the group of eight tokens of a tile: PUT lays `new` ``[64]`` at token `last`, CLEAR zeros behind it."""
        there = rows.load(layout)
        token = group * 8 + gl.arange(0, 8, layout=gl.SliceLayout(1, layout))[:, None]
        if PUT:
            there = gl.where(token == last, new[None, :].to(there.dtype), there)
        if CLEAR:
            there = gl.where(token <= last, there, 0.0)
        rows.store(there)

    @gluon.jit
    def _add_up(
        part_ptr, lse_ptr, out_ptr, row, head, begin, tiles, share,
        H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr, N: gl.constexpr,
    ):  # fmt: skip
        """What programs left of a row's KV head, whose tiles begin at place `begin` of the line."""
        HALF: gl.constexpr = _HALF
        PIECES: gl.constexpr = 8
        cube: gl.constexpr = gl.BlockedLayout([PIECES, 1, 2], [1, 1, 32], [1, 4, 1], [2, 1, 0])
        plane: gl.constexpr = gl.SliceLayout(2, cube)
        piece = gl.arange(0, PIECES, layout=gl.SliceLayout(1, plane))
        n = gl.arange(0, N, layout=gl.SliceLayout(0, plane))
        c = gl.arange(0, HALF, layout=gl.SliceLayout(0, gl.SliceLayout(1, cube)))
        first = begin // share
        count = (begin + tiles - 1) // share - first + 1
        # The row is not the first of the program that it begins in: its part stands second there.
        second = (begin > first * share).to(gl.int32)
        best = gl.full((N,), float("-inf"), gl.float32, layout=gl.SliceLayout(0, plane))
        total = gl.zeros((N,), gl.float32, layout=gl.SliceLayout(0, plane))
        low = gl.zeros((N, HALF), gl.float32, layout=gl.SliceLayout(0, cube))
        high = gl.zeros((N, HALF), gl.float32, layout=gl.SliceLayout(0, cube))
        for step in range(0, count, PIECES):
            spot = (2 * (first + step + piece) + gl.where(step + piece == 0, second, 0)) * G
            live = (step + piece < count)[:, None] & (n < G)[None, :]
            lse = gl.load(lse_ptr + spot[:, None] + n[None, :], mask=live, other=float("-inf"), cache_modifier=".cg")
            at = part_ptr + (spot[:, None] + n[None, :])[:, :, None] * D + c[None, None, :]
            part_low = gl.load(at, mask=live[:, :, None], other=0.0, cache_modifier=".cg")
            part_high = gl.load(at + (D - HALF), mask=live[:, :, None], other=0.0, cache_modifier=".cg")
            top = gl.where(n < G, gl.maximum(best, gl.max(lse, axis=0)), 0.0)
            decay = gl.exp2(best - top)
            weight = gl.exp2(lse - top[None, :])
            total = total * decay + gl.sum(weight, axis=0)
            wide_decay = gl.convert_layout(decay, gl.SliceLayout(1, gl.SliceLayout(0, cube)))[:, None]
            low = low * wide_decay + gl.sum(part_low * weight[:, :, None], axis=0)
            high = high * wide_decay + gl.sum(part_high * weight[:, :, None], axis=0)
            best = top
        share_of = 1.0 / gl.convert_layout(total, gl.SliceLayout(1, gl.SliceLayout(0, cube)))[:, None]
        m = gl.arange(0, N, layout=gl.SliceLayout(1, gl.SliceLayout(0, cube)))
        d = gl.arange(0, HALF, layout=gl.SliceLayout(0, gl.SliceLayout(0, cube)))
        to = out_ptr + ((row.to(gl.int64) * H_KV + head) * G + m)[:, None] * D + d[None, :]
        live_out = (m < G)[:, None] & (d < HALF)[None, :]
        kind: gl.constexpr = out_ptr.dtype.element_ty
        gl.store(to, (low * share_of).to(kind), mask=live_out)
        gl.store(to + (D - HALF), (high * share_of).to(kind), mask=live_out)

    @gluon.jit
    def _consume(
        k, v, heads, weights_t, there, free, q_ptr, q_norm_ptr, k_norm_ptr, cos_sin_ptr, turn_ptr, slots_ptr, kv_ptr,
        lens_ptr, cu_ptr, out_ptr, part_ptr, lse_ptr, tickets_ptr, begin, end, share, row, first, last,
        stride_q, stride_block, stride_half, scale_log2, softcap, eps,
        STAGES: gl.constexpr, H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr, B: gl.constexpr, N: gl.constexpr,
        OWN: gl.constexpr, NORM: gl.constexpr, ROTARY: gl.constexpr, CAPPED: gl.constexpr,
    ):  # fmt: skip
        HALVES: gl.constexpr = D // _HALF
        HALF: gl.constexpr = _HALF
        TILE: gl.constexpr = _TILE
        GROUPS: gl.constexpr = TILE // 8
        dtype: gl.constexpr = k.dtype
        mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
        tall: gl.constexpr = gl.SliceLayout(1, mma)
        flat: gl.constexpr = gl.SliceLayout(0, mma)
        # All rows of a column in one thread, the same in every warp.
        wide: gl.constexpr = gl.BlockedLayout([N, 2], [1, 32], [4, 1], [1, 0])
        eight: gl.constexpr = gl.BlockedLayout([8, 2], [1, 32], [4, 1], [1, 0])
        column: gl.constexpr = gl.SliceLayout(0, eight)
        k_groups = recast(k, dtype, [STAGES * HALVES * GROUPS, 8, HALF], k.layout)
        v_groups = recast(v, dtype, [STAGES * HALVES * GROUPS, 8, HALF], v.layout)
        n = gl.arange(0, N, layout=gl.SliceLayout(1, wide))
        c = gl.arange(0, HALF, layout=gl.SliceLayout(0, wide))
        q_low = gl.zeros((HALF,), gl.float32, layout=gl.SliceLayout(0, wide))
        q_high, k_low, k_high = q_low, q_low, q_low
        if NORM:
            q_low, q_high = gl.load(q_norm_ptr + c).to(gl.float32), gl.load(q_norm_ptr + HALF + c).to(gl.float32)
            k_low, k_high = gl.load(k_norm_ptr + c).to(gl.float32), gl.load(k_norm_ptr + HALF + c).to(gl.float32)
        done = 0
        at = begin
        head, tile = 0, 0
        length, slot = 0, gl.to_tensor(0).to(gl.int64)
        if at < end:
            row, first, last = _find(at, row, first, last, cu_ptr, H_KV)
            head, tile = _place(at, first, last, H_KV)
            length = gl.load(lens_ptr + row)
            if OWN:
                slot = gl.load(slots_ptr + row)
        wait_for_inputs()
        low, high, cos, sin = _given(
            q_ptr,
            cos_sin_ptr,
            turn_ptr,
            row * (at < end).to(gl.int32),
            head,
            stride_q,
            OWN,
            ROTARY,
            H_KV,
            G,
            D,
            N,
            wide,
        )
        while at < end:
            tiles = last - first
            count = gl.minimum(tiles - tile, end - at)
            # What comes next is asked for now, and used when these tiles are done.
            next_at = at + count
            next_row, next_first, next_last, next_head, next_tile = row, first, last, head, tile
            next_length, next_slot = length, slot
            if next_at < end:
                next_row, next_first, next_last = _find(next_at, row, first, last, cu_ptr, H_KV)
                next_head, next_tile = _place(next_at, next_first, next_last, H_KV)
                next_length = gl.load(lens_ptr + next_row)
                if OWN:
                    next_slot = gl.load(slots_ptr + next_row)
            key_low = gl.zeros((HALF,), gl.float32, layout=column)
            key_high, value_low, value_high = key_low, key_low, key_low
            if OWN:
                new_low, new_high = _turned(
                    low, high, cos, sin, q_low, q_high, k_low, k_high, eps, NORM, ROTARY, G, D, N, wide
                )
                heads.index(0).store(new_low.to(dtype))
                heads.index(1).store(new_high.to(dtype))
                if tile + count == tiles:
                    key_low, key_high = _row(new_low, G, N, wide, column), _row(new_high, G, N, wide, column)
                    value_low, value_high = (
                        _row(new_low, G + 1, N, wide, column),
                        _row(new_high, G + 1, N, wide, column),
                    )
                    to = kv_ptr + (slot // B) * stride_block + (head * B + slot % B) * D
                    to = to + ((n - G) * stride_half)[:, None] + c[None, :]
                    new = ((n == G) | (n == G + 1))[:, None] & (c < HALF)[None, :]
                    gl.store(to, new_low.to(dtype), mask=new)
                    gl.store(to + HALF, new_high.to(dtype), mask=new)
            else:
                heads.index(0).store(low)
                if HALVES > 1:
                    heads.index(1).store(high)
            fence_async_shared()
            low, high, cos, sin = _given(
                q_ptr, cos_sin_ptr, turn_ptr, next_row, next_head, stride_q, OWN, ROTARY, H_KV, G, D, N, wide
            )
            best = gl.full((N,), float("-inf"), gl.float32, layout=flat)
            total = gl.zeros((TILE, N), gl.float32, layout=mma)
            acc_low = gl.zeros((HALF, N), gl.float32, layout=mma)
            acc_high = gl.zeros((HALF, N), gl.float32, layout=mma)
            for i in range(count):
                stage = done % STAGES
                left = length - (tile + i) * TILE
                mbarrier.wait(there.index(stage), done // STAGES & 1)
                if left <= TILE:
                    newest = left - 1
                    group = newest // 8
                    at_low = stage * HALVES * GROUPS
                    if OWN:
                        _put(k_groups.index(at_low + group), group, newest, key_low, eight, True, False)
                        _put(k_groups.index(at_low + GROUPS + group), group, newest, key_high, eight, True, False)
                    group = newest // B * (B // 8)
                    for j in gl.static_range(B // 8):
                        _put(v_groups.index(at_low + group + j), group + j, newest, value_low, eight, OWN, True)
                        if HALVES > 1:
                            v_high = v_groups.index(at_low + GROUPS + group + j)
                            _put(v_high, group + j, newest, value_high, eight, OWN, True)
                    fence_async_shared()
                score = warpgroup_mma_init(gl.zeros((TILE, N), gl.float32, layout=mma))
                for h in gl.static_range(HALVES):
                    keys = k.index(stage * HALVES + h)
                    score = warpgroup_mma(keys, heads.index(h).permute((1, 0)), score, is_async=True)
                scores = warpgroup_mma_wait(0, deps=[score]) * scale_log2
                if CAPPED:
                    scores = softcap_logits(scores / LOG2E, softcap) * LOG2E
                if left < TILE:
                    scores = gl.where((gl.arange(0, TILE, layout=tall) < left)[:, None], scores, float("-inf"))
                top = gl.maximum(best, gl.max(scores, axis=0))
                weights = gl.exp2(scores - top[None, :])
                decay = gl.exp2(best - top)
                best = top
                total = total * decay[None, :] + weights
                weights_t.store(gl.permute(weights, (1, 0)).to(dtype))
                fence_async_shared()
                sum_low = warpgroup_mma_init(acc_low * decay[None, :])
                values = v.index(stage * HALVES).permute((1, 0))
                sum_low = warpgroup_mma(values, weights_t.permute((1, 0)), sum_low, is_async=True)
                if HALVES > 1:
                    sum_high = warpgroup_mma_init(acc_high * decay[None, :])
                    values = v.index(stage * HALVES + 1).permute((1, 0))
                    sum_high = warpgroup_mma(values, weights_t.permute((1, 0)), sum_high, is_async=True)
                    acc_low, acc_high = warpgroup_mma_wait(0, deps=[sum_low, sum_high])
                else:
                    acc_low = warpgroup_mma_wait(0, deps=[sum_low])
                mbarrier.arrive(free.index(stage), count=1)
                done += 1
            summed = gl.sum(total, axis=0)
            g = gl.arange(0, N, layout=flat)
            d = gl.arange(0, HALF, layout=tall)
            live = (g < G)[None, :] & (d < HALF)[:, None]
            low_out, high_out = acc_low / summed[None, :], acc_high / summed[None, :]
            if count == tiles:
                spot = out_ptr + ((row.to(gl.int64) * H_KV + head) * G + g)[None, :] * D + d[:, None]
                gl.store(spot, low_out.to(dtype), mask=live)
                if HALVES > 1:
                    gl.store(spot + HALF, high_out.to(dtype), mask=live)
            else:
                part = (2 * gl.program_id(0) + (at > begin).to(gl.int32)) * G + g
                to_part = part_ptr + part[None, :] * D + d[:, None]
                gl.store(to_part, low_out, mask=live)
                if HALVES > 1:
                    gl.store(to_part + HALF, high_out, mask=live)
                gl.store(lse_ptr + part, best + gl.log2(summed), mask=g < G)
                meet()
                pieces = (at - tile + tiles - 1) // share - (at - tile) // share + 1
                ticket = tickets_ptr + row * H_KV + head
                if gl.atomic_add(ticket, 1, sem="acq_rel") == pieces - 1:
                    gl.store(ticket, 0)
                    _add_up(part_ptr, lse_ptr, out_ptr, row, head, at - tile, tiles, share, H_KV, G, D, N)
            at = next_at
            row, first, last, head, tile = next_row, next_first, next_last, next_head, next_tile
            length, slot = next_length, next_slot

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
        HALVES: gl.constexpr = D // _HALF
        dtype: gl.constexpr = kv_tiles.dtype
        laid: gl.constexpr = kv_tiles.layout
        k = gl.allocate_shared_memory(dtype, [STAGES * HALVES, _TILE, _HALF], laid)
        v = gl.allocate_shared_memory(dtype, [STAGES * HALVES, _TILE, _HALF], laid)
        heads = gl.allocate_shared_memory(dtype, [HALVES, N, _HALF], laid)
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
                    _produce,
                    (
                        0, kv_tiles, k, v, there, free, table_ptr, lens_ptr, cu_ptr, begin, end, row, first, last,
                        stride_table, block_rows, H_KV, D, B, OWN, STAGES,
                    ),
                ),
                (
                    _produce,
                    (
                        1, kv_tiles, k, v, there, free, table_ptr, lens_ptr, cu_ptr, begin, end, row, first, last,
                        stride_table, block_rows, H_KV, D, B, OWN, STAGES,
                    ),
                ),
                (
                    _produce,
                    (
                        2, kv_tiles, k, v, there, free, table_ptr, lens_ptr, cu_ptr, begin, end, row, first, last,
                        stride_table, block_rows, H_KV, D, B, OWN, STAGES,
                    ),
                ),
                (
                    _produce,
                    (
                        3, kv_tiles, k, v, there, free, table_ptr, lens_ptr, cu_ptr, begin, end, row, first, last,
                        stride_table, block_rows, H_KV, D, B, OWN, STAGES,
                    ),
                ),
            ],
            [1] * 4,
            [48] * 4,
        )  # fmt: skip
