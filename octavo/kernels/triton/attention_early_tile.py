"""What attention_early does with a tile, and with what a row's tiles came to.

The tokens of a tile are the tall side of both products, the query heads of a KV head the narrow one.
Legend: H heads, G query heads a KV head, D head dim, N columns.
"""

from octavo.kernels.triton.attention_decode import TILE
from octavo.kernels.triton.attention_tile import LOG2E, softcap_logits
from octavo.kernels.triton.hopper import HOPPER

if HOPPER:
    from octavo.kernels.triton.attention_early_ring import HALF
    from octavo.kernels.triton.hopper import (
        fence_async_shared,
        gl,
        gluon,
        meet,
        warpgroup_mma,
        warpgroup_mma_init,
        warpgroup_mma_wait,
    )

    _TILE = gl.constexpr(TILE)

    @gluon.jit
    def nothing_yet(N: gl.constexpr, mma: gl.constexpr):
        """The running softmax of `attend_tile` before its first tile."""
        best = gl.full((N,), float("-inf"), gl.float32, layout=gl.SliceLayout(0, mma))
        total = gl.zeros((_TILE, N), gl.float32, layout=mma)
        return best, total, gl.zeros((HALF, N), gl.float32, layout=mma), gl.zeros((HALF, N), gl.float32, layout=mma)

    @gluon.jit
    def attend_tile(
        k, v, heads, weights_t, stage, left, best, total, acc_low, acc_high, scale_log2, softcap,
        HALVES: gl.constexpr, N: gl.constexpr, CAPPED: gl.constexpr, mma: gl.constexpr,
    ):  # fmt: skip
        """Take a tile with `left` tokens into the running softmax: best ``[N]``, total ``[64, N]`` yet to be summed,
        and two halves of the values' sum ``[64, N]``."""
        TILE: gl.constexpr = _TILE
        dtype: gl.constexpr = k.dtype
        score = warpgroup_mma_init(gl.zeros((TILE, N), gl.float32, layout=mma))
        for h in gl.static_range(HALVES):
            keys = k.index(stage * HALVES + h)
            score = warpgroup_mma(keys, heads.index(h).permute((1, 0)), score, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[score]) * scale_log2
        if CAPPED:
            scores = softcap_logits(scores / LOG2E, softcap) * LOG2E
        if left < TILE:
            token = gl.arange(0, TILE, layout=gl.SliceLayout(1, mma))
            scores = gl.where((token < left)[:, None], scores, float("-inf"))
        top = gl.maximum(best, gl.max(scores, axis=0))
        weights = gl.exp2(scores - top[None, :])
        decay = gl.exp2(best - top)
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
        return top, total, acc_low, acc_high

    @gluon.jit
    def leave(
        out_ptr, part_ptr, lse_ptr, tickets_ptr, row, head, begin, tiles, share, second, whole,
        best, total, acc_low, acc_high,
        H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr, N: gl.constexpr, mma: gl.constexpr,
    ):  # fmt: skip
        """Write what a row's tiles came to; if this program had not all of them, as its first or `second` part, and
        whoever comes last adds them up. The row's tiles begin at place `begin` of the line."""
        kind: gl.constexpr = out_ptr.dtype.element_ty
        summed = gl.sum(total, axis=0)
        g = gl.arange(0, N, layout=gl.SliceLayout(0, mma))
        d = gl.arange(0, HALF, layout=gl.SliceLayout(1, mma))
        live = (g < G)[None, :] & (d < HALF)[:, None]
        low_out, high_out = acc_low / summed[None, :], acc_high / summed[None, :]
        if whole:
            spot = out_ptr + ((row.to(gl.int64) * H_KV + head) * G + g)[None, :] * D + d[:, None]
            gl.store(spot, low_out.to(kind), mask=live)
            if D > HALF:
                gl.store(spot + HALF, high_out.to(kind), mask=live)
        else:
            part = (2 * gl.program_id(0) + second) * G + g
            to_part = part_ptr + part[None, :] * D + d[:, None]
            gl.store(to_part, low_out, mask=live)
            if D > HALF:
                gl.store(to_part + HALF, high_out, mask=live)
            gl.store(lse_ptr + part, best + gl.log2(summed), mask=g < G)
            meet()
            pieces = (begin + tiles - 1) // share - begin // share + 1
            ticket = tickets_ptr + row * H_KV + head
            if gl.atomic_add(ticket, 1, sem="acq_rel") == pieces - 1:
                gl.store(ticket, 0)
                _add_up(part_ptr, lse_ptr, out_ptr, row, head, begin, tiles, share, H_KV, G, D, N)

    @gluon.jit
    def _add_up(
        part_ptr, lse_ptr, out_ptr, row, head, begin, tiles, share,
        H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr, N: gl.constexpr,
    ):  # fmt: skip
        """What programs left of a row's KV head, whose tiles begin at place `begin` of the line."""
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
