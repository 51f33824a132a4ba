"""Log-probabilities of chosen and likeliest tokens in two launches: each part of the vocabulary gives its likeliest,
its mass and how many tokens lie above the chosen one; then one program a row puts the parts together.

Legend: n rows, V vocabulary, P parts.
"""

import torch
import triton
import triton.language as tl

from octavo.base.params import MAX_LOGPROBS
from octavo.kernels.ref import describe as ref
from octavo.kernels.triton.common import LAUNCH, let_next_start, pow2, wait_for_inputs
from octavo.kernels.triton.greedy import PART_TOKENS, logits_of_part
from octavo.kernels.triton.narrow import key_of

_TAKEN = tl.constexpr(-(1 << 31))  # below the key of every float
_FLOOR = tl.constexpr(ref.FLOOR)


@triton.jit
def _bits(logit, total):
    """Of a log-probability."""
    x = logit - total
    x = tl.where((x != x) | (x == float("-inf")), _FLOOR, x)  # noqa: PLR0124
    return x.to(tl.int32, bitcast=True)


@triton.jit
def _wanted(tops_ptr, row, top, stride_tops, EACH: tl.constexpr):
    """How many likeliest tokens are told of this row."""
    if EACH:
        top = tl.minimum(tl.load(tops_ptr + row * stride_tops), top)
    return top


@triton.jit(do_not_specialize=["top", "stride_tops"], do_not_specialize_on_alignment=["tops_ptr"])
def _look(
    logits_ptr, tokens_ptr, tops_ptr, keys_ptr, ids_ptr, best_ptr, mass_ptr, above_ptr, stride, stride_tops, V, PARTS,
    top, EACH: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    part = tl.program_id(1)
    place = tl.arange(0, PART)
    token = part * PART + place
    let_next_start()
    wait_for_inputs()
    wanted = _wanted(tops_ptr, row, top, stride_tops, EACH)
    if wanted >= 0:
        x = logits_of_part(logits_ptr, row, token, stride, V)
        own = tl.load(logits_ptr + row.to(tl.int64) * stride + tl.load(tokens_ptr + row))
        best = tl.max(x, axis=0)
        mine = row * PARTS + part
        tl.store(best_ptr + mine, best)
        tl.store(mass_ptr + mine, tl.sum(tl.exp(x - tl.where(best > float("-inf"), best, 0.0)), axis=0))
        tl.store(above_ptr + mine, tl.sum((x > own).to(tl.int32), axis=0))
        key = tl.where(token < V, key_of(x), _TAKEN)
        for rank in range(wanted):
            most, at = tl.max(key, axis=0, return_indices=True, return_indices_tie_break_left=True)
            tl.store(keys_ptr + mine * top + rank, most)
            tl.store(ids_ptr + mine * top + rank, part * PART + at)
            key = tl.where(place == at, _TAKEN, key)


@triton.jit(do_not_specialize=["top", "stride_tops"], do_not_specialize_on_alignment=["tops_ptr"])
def _tell(
    logits_ptr, tokens_ptr, tops_ptr, keys_ptr, ids_ptr, best_ptr, mass_ptr, above_ptr, out_ptr, stride, stride_tops,
    PARTS, top, EACH: tl.constexpr, PAD: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    part = tl.arange(0, PAD)
    let_next_start()
    wait_for_inputs()
    wanted = _wanted(tops_ptr, row, top, stride_tops, EACH)
    if wanted >= 0:
        best = tl.load(best_ptr + row * PARTS + part, mask=part < PARTS, other=float("-inf"))
        mass = tl.load(mass_ptr + row * PARTS + part, mask=part < PARTS, other=0.0)
        above = tl.load(above_ptr + row * PARTS + part, mask=part < PARTS, other=0)
        greatest = tl.max(best, axis=0)
        total = greatest + tl.log(tl.sum(mass * tl.exp(best - greatest), axis=0))
        token = tl.load(tokens_ptr + row)
        own = tl.load(logits_ptr + row.to(tl.int64) * stride + token)
        out = out_ptr + row * (3 + 2 * top)
        tl.store(out, token.to(tl.int32))
        tl.store(out + 1, tl.sum(above, axis=0) + 1)
        tl.store(out + 2, _bits(own, total))
        # Equals stand in the order of their ids: parts one after another, each with its own in order.
        place = tl.arange(0, MOST)
        given = (place < PARTS * top) & (place % tl.maximum(top, 1) < wanted)
        key = tl.load(keys_ptr + row * PARTS * top + place, mask=given, other=_TAKEN)
        for rank in range(wanted):
            most, at = tl.max(key, axis=0, return_indices=True, return_indices_tie_break_left=True)
            value = (most ^ ((most >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
            tl.store(out + 3 + rank, tl.load(ids_ptr + row * PARTS * top + at))
            tl.store(out + 3 + top + rank, _bits(value, total))
            key = tl.where(place == at, _TAKEN, key)


def describe(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    top: int,
    asked: torch.Tensor | None = None,
    tops: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `Describe` in kernels/ops: logits ``[n, V]``, tokens ``[n]``, asked ``[n, top] -> [n, 3 + 2 top]`` int32."""
    rows, vocab = logits.shape
    top = min(top, vocab)
    if asked is not None or top > MAX_LOGPROBS:
        return ref.describe(logits, tokens, top, asked)
    parts = triton.cdiv(vocab, PART_TOKENS)
    best, mass = (torch.empty((rows, parts), dtype=torch.float32, device=logits.device) for _ in range(2))
    above = torch.empty((rows, parts), dtype=torch.int32, device=logits.device)
    keys, ids = (torch.empty((rows, parts, top), dtype=torch.int32, device=logits.device) for _ in range(2))
    out = torch.empty((rows, 3 + 2 * top), dtype=torch.int32, device=logits.device)
    each = above if tops is None else tops
    if rows:
        given = logits, tokens, each, keys, ids, best, mass, above
        sizes = {"EACH": tops is not None, **LAUNCH}
        strides = logits.stride(0), each.stride(0)
        _look[(rows, parts)](*given, *strides, vocab, parts, top, PART=PART_TOKENS, **sizes)
        _tell[(rows,)](*given, out, *strides, parts, top, PAD=pow2(parts), MOST=pow2(parts * MAX_LOGPROBS), **sizes)
    return out
