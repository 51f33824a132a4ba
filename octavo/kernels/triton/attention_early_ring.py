"""The ring of attention_early: tiles of keys and values by bulk copies, one after the other.

Blocks that a tile lacks are asked for behind all rows that there are: hardware gives zeros and reads nothing.
Legend: D head dim, B block size.
"""

from octavo.kernels.triton.attention_decode import TILE
from octavo.kernels.triton.common import wait_for_inputs
from octavo.kernels.triton.hopper import HOPPER

if HOPPER:
    from octavo.kernels.triton.hopper import bring, gl, gluon, mbarrier

    _TILE = gl.constexpr(TILE)
    NOWHERE = gl.constexpr((1 << 31) - (1 << 20))  # a row behind all that there are
    HALF = gl.constexpr(64)  # columns that bulk copies lay down at once

    @gluon.jit
    def find(at, row, first, last, cu_ptr, H_KV: gl.constexpr):
        """The row of place `at` in the line of tiles, from `row` on, and the running counts before and behind it."""
        while last * H_KV <= at:
            row += 1
            first = last
            last = gl.load(cu_ptr + row + 1)
        return row, first, last

    @gluon.jit
    def place(at, first, last, H_KV: gl.constexpr):
        """The KV head of place `at`, and which of its tiles it is."""
        behind = at - first * H_KV
        head = behind // (last - first)
        return head, behind - head * (last - first)

    @gluon.jit
    def _look_up(at, row, first, last, cu_ptr, lens_ptr, table_ptr, stride_table, H_KV: gl.constexpr):
        """Of place `at`: row, the counts round it, KV head, tile, the row's tokens from there on, its block table."""
        row, first, last = find(at, row, first, last, cu_ptr, H_KV)
        head, tile = place(at, first, last, H_KV)
        left = gl.load(lens_ptr + row) - tile * _TILE
        return row, first, last, head, tile, left, table_ptr + row.to(gl.int64) * stride_table

    @gluon.jit
    def _bring_blocks(
        kv_tiles, k, v, there, stage, table, tile, left, head, begin, end, block_rows,
        H_KV: gl.constexpr, D: gl.constexpr, B: gl.constexpr,
    ):  # fmt: skip
        """Blocks ``begin .. end`` of a tile with `left` tokens from its first on; behind those zeros, read nowhere."""
        HALVES: gl.constexpr = D // HALF
        BLOCKS: gl.constexpr = _TILE // B
        for j in gl.static_range(BLOCKS):
            wanted = (j >= begin) & (j < end)
            live = j * B < left
            block = gl.load(table + tile * BLOCKS + j, mask=wanted & live, other=0)
            row = gl.where(live, block * block_rows + head * B, NOWHERE)
            for h in gl.static_range(HALVES):
                k_to = k.index(stage * HALVES + h).slice(j * B, B)
                v_to = v.index(stage * HALVES + h).slice(j * B, B)
                bring(kv_tiles, [row, h * HALF], there, k_to, pred=wanted)
                bring(kv_tiles, [row + H_KV * B, h * HALF], there, v_to, pred=wanted)

    @gluon.jit
    def produce(
        kv_tiles, k, v, there, free, table_ptr, lens_ptr, cu_ptr, begin, end, row, first, last, stride_table,
        block_rows, STAGES: gl.constexpr, H_KV: gl.constexpr, D: gl.constexpr, B: gl.constexpr, OWN: gl.constexpr,
    ):  # fmt: skip
        """Tiles ``begin .. end`` of the line, one after the other, into the ring."""
        BLOCKS: gl.constexpr = _TILE // B
        early = gl.minimum(STAGES, end - begin)
        at_row, at_first, at_last = row, first, last
        for i in range(early):
            at_row, at_first, at_last, head, tile, left, table = _look_up(
                begin + i, at_row, at_first, at_last, cu_ptr, lens_ptr, table_ptr, stride_table, H_KV
            )
            # The block of the newest token is another kernel's to write, unless this one does.
            ready = BLOCKS if OWN else (left - 1) // B
            mbarrier.expect(there.index(i), _TILE * D * 2 * 2)
            _bring_blocks(kv_tiles, k, v, there.index(i), i, table, tile, left, head, 0, ready, block_rows, H_KV, D, B)
        if not OWN:
            wait_for_inputs()
            at_row, at_first, at_last = row, first, last
            for i in range(early):
                at_row, at_first, at_last, head, tile, left, table = _look_up(
                    begin + i, at_row, at_first, at_last, cu_ptr, lens_ptr, table_ptr, stride_table, H_KV
                )
                if left <= _TILE:
                    ready = (left - 1) // B
                    _bring_blocks(
                        kv_tiles, k, v, there.index(i), i, table, tile, left, head, ready, BLOCKS, block_rows,
                        H_KV, D, B,
                    )  # fmt: skip
        for i in range(early, end - begin):
            at_row, at_first, at_last, head, tile, left, table = _look_up(
                begin + i, at_row, at_first, at_last, cu_ptr, lens_ptr, table_ptr, stride_table, H_KV
            )
            stage = i % STAGES
            mbarrier.wait(free.index(stage), (i // STAGES - 1) & 1)
            mbarrier.expect(there.index(stage), _TILE * D * 2 * 2)
            _bring_blocks(
                kv_tiles, k, v, there.index(stage), stage, table, tile, left, head, 0, BLOCKS, block_rows, H_KV, D, B
            )
