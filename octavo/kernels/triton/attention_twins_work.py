"""Which pieces of work a program of attention_twins has, and how its other warps hear of them.

Programs draw pieces as they get to them: rows differ too much for any fixed share to be a fair one. Looking a piece up
takes as long as a tile of products, so the warp that brings keys does it ahead, and leaves what it found as a slip of
numbers in shared memory.
"""

from octavo.kernels.triton.attention_tile import piece_of
from octavo.kernels.triton.hopper import HOPPER

if HOPPER:
    from octavo.kernels.triton.hopper import gl, gluon, mbarrier

    SLIPS = gl.constexpr(2)  # on the way at once
    SLIP = gl.constexpr(8)  # numbers of one
    _NEVER = gl.constexpr((1 << 31) - 1)

    @gluon.jit
    def draw(drawn_ptr):
        """A piece that no program has had; the first of each program is its own number."""
        return gl.atomic_add(drawn_ptr, 1, sem="relaxed") + gl.num_programs(0)

    @gluon.jit
    def put_back(drawn_ptr):
        """Said by each program once it has drawn its last: whoever is the last of all leaves zeros for the next."""
        if gl.atomic_add(drawn_ptr + 1, 1, sem="acq_rel") == gl.num_programs(0) - 1:
            gl.store(drawn_ptr, 0)
            gl.store(drawn_ptr + 1, 0)

    @gluon.jit
    def _row_of(item, cu_ptr, num_rows):
        """The row whose tiles hold number `item`. All counts at once: one after the other they would take as long as
        a tile's products."""
        layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
        row = 0
        for base in range(0, num_rows, 128):
            at = base + gl.arange(0, 128, layout=layout)
            ends = gl.load(cu_ptr + 1 + at, mask=at < num_rows, other=_NEVER)
            row += gl.sum((ends <= item).to(gl.int32), axis=0)
        return row

    @gluon.jit
    def work(
        number, num_tiles, pieces, cu_ptr, lens_ptr, start_ptr, num_rows,
        H_KV: gl.constexpr, QUERIES: gl.constexpr, LEAST: gl.constexpr, TILE: gl.constexpr,
    ):  # fmt: skip
        """A piece of work: row, KV head, which of the tile's pieces it is (or -1, if all of them), the tile's first
        token in T, how many of the row's queries are left from there on, the row's length, and the piece's first token
        and the one behind its last."""
        head = number % H_KV
        place = number // H_KV
        index = place % pieces
        # Late tiles of a long row see most, so they come first.
        item = num_tiles - 1 - place // pieces
        row = _row_of(item, cu_ptr, num_rows)
        tile = item - gl.load(cu_ptr + row)
        begin = gl.load(start_ptr + row)
        query_len = gl.load(start_ptr + row + 1) - begin
        length = gl.load(lens_ptr + row)
        left = query_len - tile * QUERIES
        high = gl.minimum(length - left + QUERIES, length)
        piece = piece_of(0, high, pieces, LEAST, TILE)
        low = index * piece
        index = gl.where(piece < high, index, -1)
        return row, head, index, begin + tile * QUERIES, left, length, low, gl.minimum(low + piece, high)

    @gluon.jit
    def _put(slips, at, value):
        layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
        slips.index(at).store(gl.full((1,), value, gl.int32, layout=layout))

    @gluon.jit
    def _get(slips, at, WARPS: gl.constexpr):
        layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
        return gl.sum(slips.index(at).load(layout), axis=0)

    @gluon.jit
    def tell(slips, told, heard, said, row, head, index, first, left, length, low, high):
        """Leave slip number `said`."""
        slot = said % SLIPS
        mbarrier.wait(heard.index(slot), (said // SLIPS & 1) ^ 1)
        at = slot * SLIP
        _put(slips, at, row)
        _put(slips, at + 1, head)
        _put(slips, at + 2, index)
        _put(slips, at + 3, first)
        _put(slips, at + 4, left)
        _put(slips, at + 5, length)
        _put(slips, at + 6, low)
        _put(slips, at + 7, high)
        mbarrier.arrive(told.index(slot), count=1)

    @gluon.jit
    def hear(slips, told, heard, said, WARPS: gl.constexpr):
        """What slip number `said` says."""
        slot = said % SLIPS
        mbarrier.wait(told.index(slot), said // SLIPS & 1)
        at = slot * SLIP
        row, head = _get(slips, at, WARPS), _get(slips, at + 1, WARPS)
        index, first = _get(slips, at + 2, WARPS), _get(slips, at + 3, WARPS)
        left, length = _get(slips, at + 4, WARPS), _get(slips, at + 5, WARPS)
        low, high = _get(slips, at + 6, WARPS), _get(slips, at + 7, WARPS)
        mbarrier.arrive(heard.index(slot), count=1)
        return row, head, index, first, left, length, low, high
