"""One tile of cached tokens against a tile of queries: the step that both attention kernels repeat.

Legend: M queries, N tokens of the tile, D head dim, B block size.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def softcap_logits(x, cap):
    """``cap * tanh(x / cap)`` by exponentials; the argument is clamped so that neither overflows."""
    t = tl.minimum(tl.maximum(x / cap, -20.0), 20.0)
    e = tl.exp(2.0 * t)
    return cap * (e - 1.0) / (e + 1.0)


@triton.jit
def piece_of(low, high, pieces, LEAST: tl.constexpr, TILE: tl.constexpr):
    """How many of the tokens ``low .. high`` are a piece, a multiple of TILE: who computes pieces and who adds them up
    have to agree."""
    return tl.maximum(tl.cdiv(tl.cdiv(high - low, pieces), TILE) * TILE, LEAST)


@triton.jit
def fold(scores, v, best, total, acc, PRECISION: tl.constexpr):
    """Take one more tile into a running softmax: scores ``[M, N]`` in log2, v ``[N, D]``; acc ``[M, D]`` is unscaled.

    Milakov and Gimelshein 2018. A row that has seen nothing yet keeps its exponents finite.
    """
    top = tl.maximum(best, tl.max(scores, axis=1))
    shift = tl.where(top == float("-inf"), 0.0, top)
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(best - shift)
    total = total * decay + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
    return top, total, acc


@triton.jit
def blocks_of(table, at, high, B: tl.constexpr, TILE: tl.constexpr):
    """Numbers of the blocks that hold tokens ``at .. at + TILE``, 0 from `high` on: ``[TILE]``."""
    token = at + tl.arange(0, TILE)
    return tl.load(table + token // B, mask=token < high, other=0)


@triton.jit
def _read(pointers, live, inside, MASKED: tl.constexpr, FULL: tl.constexpr):
    """Keys or values of the tokens that are live, and the columns that the head has; FULL: it has all."""
    if MASKED:
        return tl.load(pointers, mask=live & inside, other=0.0)
    elif FULL:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def attend(
    q,
    base,
    stride_half,
    stride_block,
    blocks,
    at,
    lowest,
    high,
    query_at,
    window,
    scale_log2,
    softcap,
    best,
    total,
    acc,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    B: tl.constexpr,
    TILE: tl.constexpr,
    CAPPED: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Take tokens ``at .. at + TILE`` of a row's cache, from `lowest` and below `high`, into the running softmax of
    q ``[M, D]``. They lie in `blocks` (`blocks_of`).

    Not MASKED: every query sees all of them. CAUSAL: queries stand at ``query_at [M]`` and see up to themselves.
    What lies outside is not read: behind a window it is another row's by now, and a weight of zero does not undo a
    value that is no number.
    """
    token = at + tl.arange(0, TILE)
    column = tl.arange(0, D_PAD)
    live = token < high
    if WINDOWED:
        live = live & (token >= lowest)
    place = blocks.to(tl.int64) * stride_block + (token % B) * D
    k = _read(base + place[None, :] + column[:, None], live[None, :], column[:, None] < D, MASKED, D == D_PAD)
    scores = tl.dot(q, k, input_precision=PRECISION) * scale_log2
    if CAPPED:
        scores = softcap_logits(scores / LOG2E, softcap) * LOG2E
    if MASKED:
        seen = live[None, :]
        if CAUSAL:
            seen = seen & (token[None, :] <= query_at[:, None])
            if WINDOWED:
                seen = seen & (token[None, :] > query_at[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
    base += stride_half
    v = _read(base + place[:, None] + column[None, :], live[:, None], column[None, :] < D, MASKED, D == D_PAD)
    return fold(scores, v, best, total, acc, PRECISION)
