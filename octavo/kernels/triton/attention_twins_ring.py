"""The two rings of attention_twins: keys and values by bulk copies, tile after tile, a warp for each.

Blocks that a tile lacks are asked for behind all rows that there are: hardware gives zeros and reads nothing.
Legend: D head dim, B block size.
"""

from octavo.kernels.triton.common import wait_for_inputs
from octavo.kernels.triton.hopper import HOPPER

if HOPPER:
    from octavo.kernels.triton.attention_early_ring import HALF, NOWHERE
    from octavo.kernels.triton.attention_twins_work import draw, hear, put_back, tell, work
    from octavo.kernels.triton.hopper import bring, gl, gluon, mbarrier, recast

    @gluon.jit
    def _bring_tile(
        kv_tiles, ring, there, stage, table, at, left, first_row, block_rows,
        D: gl.constexpr, B: gl.constexpr, TILE: gl.constexpr,
    ):  # fmt: skip
        """The tile of tokens from `at` on, of which there are `left`; a block's part begins at its row `first_row`.
        Bulk copies lay down 64 columns at once, all rows of one half before those of the other."""
        HALVES: gl.constexpr = D // HALF
        halves = recast(ring, ring.dtype, [ring.shape[0] * HALVES, TILE, HALF], ring.layout)
        mbarrier.expect(there, TILE * D * 2)
        for j in gl.static_range(TILE // B):
            live = j * B < left
            block = gl.load(table + at // B + j, mask=live, other=0)
            row = gl.where(live, block * block_rows + first_row, NOWHERE)
            for h in gl.static_range(HALVES):
                bring(kv_tiles, [row, h * HALF], there, halves.index(stage * HALVES + h).slice(j * B, B))

    @gluon.jit
    def _bring_piece(
        kv_tiles, ring, there, free, done, table, low, high, length, first_row, block_rows,
        STAGES: gl.constexpr, D: gl.constexpr, B: gl.constexpr, TILE: gl.constexpr,
    ):  # fmt: skip
        for at in range(low, high, TILE):
            stage = done % STAGES
            mbarrier.wait(free.index(stage), (done // STAGES & 1) ^ 1)
            _bring_tile(
                kv_tiles, ring, there.index(stage), stage, table, at, length - at, first_row, block_rows, D, B, TILE
            )
            done += 1
        return done

    @gluon.jit
    def bring_keys(
        kv_tiles, ring, there, free, slips, told, heard, table_ptr, lens_ptr, start_ptr, cu_ptr, num_rows, stride_table,
        block_rows,
        STAGES: gl.constexpr, H_KV: gl.constexpr, D: gl.constexpr, B: gl.constexpr, QUERIES: gl.constexpr,
        LEAST: gl.constexpr, TILE: gl.constexpr,
    ):  # fmt: skip
        """The keys of piece after piece of work, and word of each to the others; in the end of one without tokens."""
        wait_for_inputs()
        num_tiles = gl.load(cu_ptr + num_rows)
        pieces = gl.load(cu_ptr + num_rows + 1)
        total = num_tiles * pieces * H_KV
        drawn = cu_ptr + num_rows + 2
        number = gl.program_id(0)
        done = 0
        said = 0
        while number < total:
            row, head, index, first, left, length, low, high = work(
                number, num_tiles, pieces, cu_ptr, lens_ptr, start_ptr, num_rows, H_KV, QUERIES, LEAST, TILE
            )
            if low < high:
                tell(slips, told, heard, said, row, head, index, first, left, length, low, high)
                said += 1
                table = table_ptr + row.to(gl.int64) * stride_table
                done = _bring_piece(
                    kv_tiles, ring, there, free, done, table, low, high, length, head * B, block_rows,
                    STAGES, D, B, TILE,
                )  # fmt: skip
            number = draw(drawn)
        put_back(drawn)
        tell(slips, told, heard, said, 0, 0, 0, 0, 0, 0, 0, 0)

    @gluon.jit
    def bring_values(
        kv_tiles, ring, there, free, slips, told, heard, table_ptr, stride_table, block_rows,
        STAGES: gl.constexpr, H_KV: gl.constexpr, D: gl.constexpr, B: gl.constexpr, TILE: gl.constexpr,
    ):  # fmt: skip
        wait_for_inputs()
        done = 0
        said = 0
        row, head, _, _, _, length, low, high = hear(slips, told, heard, said, 1)
        while low < high:
            table = table_ptr + row.to(gl.int64) * stride_table
            done = _bring_piece(
                kv_tiles, ring, there, free, done, table, low, high, length, (H_KV + head) * B, block_rows,
                STAGES, D, B, TILE,
            )  # fmt: skip
            said += 1
            row, head, _, _, _, length, low, high = hear(slips, told, heard, said, 1)
