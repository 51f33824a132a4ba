"""What a group of warps does in attention_twins: take its queries, look at tiles of keys and values, write the result.

Legend: H heads, G heads a KV head, D head dim; a line is a query of one head, GROUP 0 or 1, the first or second half of
a tile's lines.
"""

from octavo.kernels.triton.attention_tile import LOG2E, softcap_logits
from octavo.kernels.triton.hopper import HOPPER

TILE = 128  # tokens that are looked at at once
LINES = 128  # of a tile of queries, half for each group

if HOPPER:
    from octavo.kernels.triton.hopper import (
        gl,
        gluon,
        mbarrier,
        warpgroup_mma,
        warpgroup_mma_init,
        warpgroup_mma_wait,
    )

    HALF_LINES = gl.constexpr(LINES // 2)
    _TILE = gl.constexpr(TILE)

    @gluon.jit
    def _places(
        first, left, head, stride, GROUP: gl.constexpr, G: gl.constexpr, D: gl.constexpr, QUERIES: gl.constexpr,
        layout: gl.constexpr,
    ):  # fmt: skip
        """Where this group's half of a tile of queries lies in ``[T, H, D]``, and which of its lines there are."""
        line = GROUP * HALF_LINES + gl.arange(0, HALF_LINES, layout=gl.SliceLayout(1, layout))
        offset = line // G
        mine = (line < QUERIES * G) & (offset < left)
        d = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
        at = (first + offset).to(gl.int64) * stride + (head * G + line % G) * D
        return at[:, None] + d[None, :], mine[:, None] & (d < D)[None, :]

    @gluon.jit
    def asked(
        q_ptr, first, left, head, stride_q,
        GROUP: gl.constexpr, G: gl.constexpr, D: gl.constexpr, QUERIES: gl.constexpr, layout: gl.constexpr,
    ):  # fmt: skip
        """This group's half of a tile of queries ``[64, D]``."""
        at, live = _places(first, left, head, stride_q, GROUP, G, D, QUERIES, layout)
        return gl.load(q_ptr + at, mask=live, other=0.0)

    @gluon.jit
    def match(k, mine, done, there, STAGES: gl.constexpr, mma: gl.constexpr):
        """The products of queries `mine` and tile number `done` of keys ``[64, 128]``, under way."""
        stage = done % STAGES
        mbarrier.wait(there.index(stage), done // STAGES & 1)
        nothing = warpgroup_mma_init(gl.zeros((HALF_LINES, _TILE), gl.float32, layout=mma))
        return warpgroup_mma(mine, k.index(stage).permute((1, 0)), nothing, is_async=True)

    @gluon.jit
    def weigh(
        scores, at, query_at, best, total, factor, scale_log2, softcap,
        CAPPED: gl.constexpr, MASKED: gl.constexpr, mma: gl.constexpr, operand: gl.constexpr, kind: gl.constexpr,
    ):  # fmt: skip
        """A tile's scores into the running softmax of lines that stand at ``query_at [64]``: best and total ``[64]``,
        what becomes of earlier sums, and the weights as the next product takes them. MASKED: not all see it whole."""
        if CAPPED:
            scores = softcap_logits(scores * (scale_log2 / LOG2E), softcap)
        if MASKED:
            token = at + gl.arange(0, _TILE, layout=gl.SliceLayout(0, mma))
            scores = gl.where(token[None, :] <= query_at[:, None], scores, float("-inf"))
        top = gl.maximum(best, gl.max(scores, axis=1))
        shift = top
        if MASKED:
            shift = gl.where(top == float("-inf"), 0.0, top)
        weights = gl.exp2(scores * factor - (shift * factor)[:, None])
        decay = gl.exp2((best - shift) * factor)
        total = total * decay + gl.sum(weights, axis=1)
        return top, total, decay, gl.convert_layout(weights.to(kind), operand)

    @gluon.jit
    def add_up(v, weights, acc, done, STAGES: gl.constexpr):
        """The values of tile number `done` by their weights, onto the sum ``[64, D]``, under way."""
        return warpgroup_mma(weights, v.index(done % STAGES), warpgroup_mma_init(acc), is_async=True)

    @gluon.jit
    def added_up(acc, weights, done, free, STAGES: gl.constexpr):
        """What `add_up` came to, once it is there."""
        acc, _ = warpgroup_mma_wait(0, deps=[acc, weights])
        mbarrier.arrive(free.index(done % STAGES), count=1)
        return acc

    @gluon.jit
    def look(
        k, v, mine, done, k_there, k_free, v_there, v_free, at, query_at, best, total, weights, acc, factor,
        scale_log2, softcap,
        STAGES: gl.constexpr, CAPPED: gl.constexpr, MASKED: gl.constexpr, mma_s: gl.constexpr, mma_o: gl.constexpr,
    ):  # fmt: skip
        """One step: this tile's keys and the last one's values. While the tensor cores have the values, the others
        weigh."""
        kind: gl.constexpr = v.dtype
        operand: gl.constexpr = gl.DotOperandLayout(0, mma_o, 2)
        score = match(k, mine, done, k_there, STAGES, mma_s)
        adding = add_up(v, weights, acc, done - 1, STAGES)
        scores = warpgroup_mma_wait(1, deps=[score])
        mbarrier.arrive(k_free.index(done % STAGES), count=1)
        best, total, decay, newer = weigh(
            scores, at, query_at, best, total, factor, scale_log2, softcap, CAPPED, MASKED, mma_s, operand, kind
        )
        # ptxas moves what is computed behind a wait for products, but not behind a loop.
        mbarrier.wait(v_there.index(done % STAGES), done // STAGES & 1)
        acc = added_up(adding, weights, done - 1, v_free, STAGES)
        return best, total, newer, acc * gl.convert_layout(decay, gl.SliceLayout(1, mma_o))[:, None]

    @gluon.jit
    def leave(
        out_ptr, part_ptr, lse_ptr, mine, index, first, left, head, num_tokens, best, total, acc,
        GROUP: gl.constexpr, H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr, QUERIES: gl.constexpr,
        lines: gl.constexpr, mma: gl.constexpr, wide: gl.constexpr,
    ):  # fmt: skip
        """Write what this group's lines came to, or piece `index` of it, as attention_prefill does; of what is whole
        that is negative."""
        summed = gl.where(total == 0.0, 1.0, total)
        acc = acc * gl.convert_layout(1.0 / summed, gl.SliceLayout(1, mma))[:, None]
        if index < 0:
            _write(out_ptr, mine, first, left, head, acc, GROUP, H_KV, G, D, QUERIES, wide)
        else:
            _write_piece(
                part_ptr, lse_ptr, index, first, left, head, num_tokens, best + gl.log2(summed), acc,
                GROUP, H_KV, G, D, QUERIES, lines, mma,
            )  # fmt: skip

    @gluon.jit
    def _write(
        out_ptr, mine, first, left, head, acc,
        GROUP: gl.constexpr, H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr, QUERIES: gl.constexpr,
        layout: gl.constexpr,
    ):  # fmt: skip
        """By way of where the queries were, so that a thread writes what lies side by side."""
        mine.store(acc.to(out_ptr.dtype.element_ty))
        at, live = _places(first, left, head, H_KV * G * D, GROUP, G, D, QUERIES, layout)
        gl.store(out_ptr + at, mine.load(layout), mask=live)

    @gluon.jit
    def _write_piece(
        part_ptr, lse_ptr, index, first, left, head, num_tokens, lse, acc,
        GROUP: gl.constexpr, H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr, QUERIES: gl.constexpr,
        lines: gl.constexpr, mma: gl.constexpr,
    ):  # fmt: skip
        skipped = index.to(gl.int64) * num_tokens * (H_KV * G)
        at, live = _places(first, left, head, H_KV * G * D, GROUP, G, D, QUERIES, mma)
        gl.store(part_ptr + skipped * D + at, acc, mask=live)
        line = GROUP * HALF_LINES + gl.arange(0, HALF_LINES, layout=lines)
        offset = line // G
        place = skipped + (first + offset).to(gl.int64) * (H_KV * G) + head * G + line % G
        gl.store(lse_ptr + place, lse, mask=(line < QUERIES * G) & (offset < left))
