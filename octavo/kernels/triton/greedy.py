"""The likeliest token of each row, in two passes over wide logits: parts of the vocabulary, then their best.

Legend: S rows, V vocabulary, P parts.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.common import LAUNCH, let_next_start, pow2, wait_for_inputs

PART_TOKENS = 4096


@triton.jit
def logits_of_part(logits_ptr, row, token, stride, V):
    """Of one row, fp32: minus infinity behind the vocabulary, infinity where it is no number, which so wins whatever
    stands beside it."""
    x = tl.load(logits_ptr + row.to(tl.int64) * stride + token, mask=token < V, other=float("-inf")).to(tl.float32)
    return tl.where(x != x, float("inf"), x)  # noqa: PLR0124


@triton.jit
def _best_of_part(logits_ptr, best_ptr, token_ptr, stride, V, PARTS, PART: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    token = part * PART + tl.arange(0, PART)
    let_next_start()
    wait_for_inputs()
    x = logits_of_part(logits_ptr, row, token, stride, V)
    best, at = tl.max(x, axis=0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(best_ptr + row * PARTS + part, best)
    tl.store(token_ptr + row * PARTS + part, part * PART + at)


@triton.jit
def _best_of_parts(best_ptr, token_ptr, out_ptr, PARTS, PAD: tl.constexpr):
    row = tl.program_id(0)
    part = tl.arange(0, PAD)
    let_next_start()
    wait_for_inputs()
    best = tl.load(best_ptr + row * PARTS + part, mask=part < PARTS, other=float("-inf"))
    top, at = tl.max(best, axis=0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.load(token_ptr + row * PARTS + at).to(tl.int64)
    sound = (top > float("-inf")) & (top < float("inf"))
    tl.store(out_ptr + row, tl.where(sound, token, -1))


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """As `Greedy` in kernels/ops: ``[S, V] -> [S]`` int64."""
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, PART_TOKENS)
    best = torch.empty((rows, parts), dtype=torch.float32, device=logits.device)
    token = torch.empty((rows, parts), dtype=torch.int32, device=logits.device)
    out = torch.empty((rows,), dtype=torch.int64, device=logits.device)
    if rows:
        _best_of_part[(rows, parts)](logits, best, token, logits.stride(0), vocab, parts, PART=PART_TOKENS, **LAUNCH)
        _best_of_parts[(rows,)](best, token, out, parts, PAD=pow2(parts), num_warps=1, **LAUNCH)
    return out
