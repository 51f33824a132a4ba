"""top_k, top_p and min_p in one launch, one program a row, without a sort.

A first look over the row keeps the two greatest logits of each of `GROUPS` groups. The likeliest tokens are nearly
always among these, so the least logit that stays is searched there, in registers, by halving the range of keys (a
float's bits as a whole number that orders as the float does); one more look at the row counts whether any other token
lies above it. Only if so is the row itself searched, a look a step: with a flat distribution and top_p alone, say.

Legend: S rows, V vocabulary.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.common import LAUNCH, let_next_start, wait_for_inputs

GROUPS = 4096
_AT_ONCE = 4  # loads under way; one program has to fill a multiprocessor's share of the memory's width
_LOWEST = tl.constexpr(-2139095040)  # key of the least finite float


@triton.jit
def key_of(x):
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # minus zero becomes zero
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _greatest(at, V, GROUPS: tl.constexpr, AT_ONCE: tl.constexpr):
    """The greatest and the second of each group ``[GROUPS]``; infinity for what is no number."""
    first = tl.full((GROUPS,), float("-inf"), tl.float32)
    second = first
    for start in range(0, V, AT_ONCE * GROUPS):
        for piece in tl.static_range(AT_ONCE):
            token = start + piece * GROUPS + tl.arange(0, GROUPS)
            x = tl.load(at + token, mask=token < V, other=float("-inf"))
            x = tl.where(x != x, float("inf"), x)  # noqa: PLR0124
            second = tl.maximum(second, tl.minimum(first, x))
            first = tl.maximum(first, x)
    return first, second


@triton.jit
def _tally(at, V, best, least, GROUPS: tl.constexpr, AT_ONCE: tl.constexpr):
    """Of the tokens whose keys are `least` or above: how many, and the sum of ``exp(x - best)``."""
    count = tl.zeros((GROUPS,), tl.int32)
    mass = tl.zeros((GROUPS,), tl.float32)
    for start in range(0, V, AT_ONCE * GROUPS):
        for piece in tl.static_range(AT_ONCE):
            token = start + piece * GROUPS + tl.arange(0, GROUPS)
            x = tl.load(at + token, mask=token < V, other=float("-inf"))
            kept = key_of(x) >= least
            count += kept.to(tl.int32)
            mass += tl.where(kept, tl.exp(x - best), 0.0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _count(first, second, least):
    return tl.sum((key_of(first) >= least).to(tl.int32) + (key_of(second) >= least).to(tl.int32), axis=0)


@triton.jit
def _search(first, second, low, high, best, target, WEIGHED: tl.constexpr):
    """The greatest key in ``low .. high`` at which those at or above it, of these alone, hold `target`; else low."""
    if WEIGHED:
        of_first, of_second = tl.exp(first - best), tl.exp(second - best)
    else:
        of_first, of_second = tl.full(first.shape, 1.0, tl.float32), tl.full(first.shape, 1.0, tl.float32)
    low, high = low.to(tl.int64), high.to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        least = middle.to(tl.int32)
        held = tl.where(key_of(first) >= least, of_first, 0.0) + tl.where(key_of(second) >= least, of_second, 0.0)
        enough = tl.sum(held, axis=0) >= target
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low.to(tl.int32)


@triton.jit
def _search_row(
    at, V, low, high, best, target, count, WEIGHED: tl.constexpr, GROUPS: tl.constexpr, AT_ONCE: tl.constexpr
):
    """As `_search`, over the whole row, where `count` tokens are at `low` or above it."""
    low, high = low.to(tl.int64), high.to(tl.int64)
    above = 0  # tokens over `high`
    while (low < high) & (count - above > 1):
        middle = (low + high + 1) >> 1
        those, mass = _tally(at, V, best, middle.to(tl.int32), GROUPS, AT_ONCE)
        if WEIGHED:
            enough = mass >= target
        else:
            enough = those.to(tl.float32) >= target
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
        count = tl.where(enough, those, count)
        above = tl.where(enough, above, those)
    return low.to(tl.int32)


@triton.jit
def _least(at, V, first, second, best, top_k, top_p, min_p, GROUPS: tl.constexpr, AT_ONCE: tl.constexpr):
    """The key of the least likely token that stays."""
    most = key_of(best)
    least = tl.full((), _LOWEST, tl.int32)
    if min_p > 0:
        least = tl.maximum(least, key_of(best + tl.log(min_p)))
    if top_k > 0:
        least = _search(first, second, least, most, best, top_k.to(tl.float32), False)
    count, mass = _tally(at, V, best, least, GROUPS, AT_ONCE)
    if (top_k > 0) & (count > top_k) & (count != _count(first, second, least)):
        least = _search_row(at, V, least, most, best, top_k.to(tl.float32), count, False, GROUPS, AT_ONCE)
        count, mass = _tally(at, V, best, least, GROUPS, AT_ONCE)
    if top_p < 1:
        target = top_p * mass
        found = _search(first, second, least, most, best, target, True)
        if count != _count(first, second, least):
            count, mass = _tally(at, V, best, found, GROUPS, AT_ONCE)
            if (found == least) | (count != _count(first, second, found)):
                found = _search_row(at, V, found, most, best, target, count, True, GROUPS, AT_ONCE)
        least = found
    return least


@triton.jit(
    do_not_specialize=["stride_columns"], do_not_specialize_on_alignment=["top_k_ptr", "top_p_ptr", "min_p_ptr"]
)
def _narrow(
    logits_ptr, top_k_ptr, top_p_ptr, min_p_ptr, stride, stride_columns, V,
    GROUPS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    let_next_start()
    wait_for_inputs()
    top_k = tl.load(top_k_ptr + row * stride_columns)
    top_p = tl.load(top_p_ptr + row * stride_columns)
    min_p = tl.load(min_p_ptr + row * stride_columns)
    if (top_k > 0) | (top_p < 1) | (min_p > 0):
        at = logits_ptr + row.to(tl.int64) * stride
        first, second = _greatest(at, V, GROUPS, AT_ONCE)
        best = tl.max(first, axis=0)
        if (best > float("-inf")) & (best < float("inf")):
            least = _least(at, V, first, second, best, top_k, top_p, min_p, GROUPS, AT_ONCE)
            for start in range(0, V, AT_ONCE * GROUPS):
                for piece in tl.static_range(AT_ONCE):
                    token = start + piece * GROUPS + tl.arange(0, GROUPS)
                    x = tl.load(at + token, mask=token < V, other=float("inf"))
                    tl.store(at + token, tl.full(x.shape, float("-inf"), tl.float32), mask=key_of(x) < least)


def narrow(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> None:
    """As `Narrow` in kernels/ops: logits ``[S, V]``, the others ``[S]``, all of one stride."""
    rows, vocab = logits.shape
    if rows:
        _narrow[(rows,)](
            logits,
            top_k,
            top_p,
            min_p,
            logits.stride(0),
            top_k.stride(0),
            vocab,
            GROUPS=GROUPS,
            AT_ONCE=_AT_ONCE,
            num_warps=16,
            **LAUNCH,
        )
