"""Counter-based randomness, the draw of a token, and what stands before and behind it, in plain torch.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014),
used by position: its state moves by a constant, so the n-th output is one mix away. Seed and stream are mixed into
the starting state. Whole numbers only, wrapping at 64 bits, so that every device gives the same numbers.
"""

import torch
from torch import Tensor


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def uniform(seeds: Tensor, positions: Tensor, stream: int) -> Tensor:
    """Numbers in [0, 1) of 53 bits: ``[R] int64, [R] int64 -> [R] fp64``; same key, same number."""
    start = _mix(seeds + _signed(GOLDEN * (stream + 1) % (1 << 64)))
    bits = _mix(start + (positions + 1) * _signed(GOLDEN))
    return _shift_right(bits, 11).double() * 2.0**-53


def sample(probs: Tensor, uniform: Tensor) -> Tensor:
    """Inverse-CDF draw: ``[R, V] fp32, [R] fp64 -> [R] int64``. A row's sum need not be one, only above zero.

    A parallel prefix sum may rise by a rounding error over a token of probability zero; such a draw becomes the
    likeliest token instead.
    """
    cdf = probs.cumsum(-1, dtype=torch.float64)
    target = (uniform * cdf[:, -1]).unsqueeze(1)
    token = torch.searchsorted(cdf, target, right=True).clamp_(max=probs.shape[1] - 1)
    likeliest = probs.argmax(-1, keepdim=True)
    return torch.where(probs.gather(1, token) > 0, token, likeliest).squeeze(1)


def greedy(logits: Tensor) -> Tensor:
    """See kernels/ops.Greedy: ``[S, V] -> [S]`` int64."""
    best, token = logits.max(-1)
    return torch.where(best.isfinite(), token, -1)


def draw(logits: Tensor, seeds: Tensor, positions: Tensor, temperature: Tensor, stream: int) -> Tensor:
    """See kernels/ops.Draw: ``[S, V] -> [S]`` int64."""
    likeliest = greedy(logits)
    drawn = sample(logits.softmax(-1), uniform(seeds, positions, stream)).clamp(0, logits.shape[1] - 1)
    return torch.where(likeliest >= 0, torch.where(temperature > 0, drawn, likeliest), -1)


def forbid(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """See kernels/ops.Forbid: logits ``[S, V]``, rows ``[K]``, masks ``[K, ceil(V / 32)]``."""
    there = rows >= 0
    rows, masks = rows[there], masks[there]
    bits = 1 << torch.arange(32, dtype=torch.int32, device=logits.device)
    forbidden = masks[:, :, None].bitwise_and(bits).eq(0).view(rows.shape[0], 32 * masks.shape[1])[:, : logits.shape[1]]
    index = rows.long()
    part = logits.index_select(0, index)
    logits.index_copy_(0, index, part.masked_fill_(forbidden & (part < float("inf")), -float("inf")))


def write_tokens(lines: Tensor, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
    """See kernels/ops.WriteTokens: lines ``[R, places]``, the others ``[S]``."""
    lines.view(-1).index_copy_(0, rows * lines.stride(0) + positions, tokens.clamp(min=0).to(torch.int32))
