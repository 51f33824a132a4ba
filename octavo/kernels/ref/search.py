"""Cuts through a distribution without sorting it: the smallest set of best tokens that holds enough weight."""

import torch
from torch import Tensor

_LOWEST = -(1 << 31)


def best_until(keys: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """Mask ``[s, V]`` of the tokens with the highest keys, as few as hold weight `target` ``[s]`` together.

    keys, weights: ``[s, V]`` fp32. Tokens of equal key stay or go together. A row whose weights never reach its
    target keeps all. The bits of a float, read as a whole number, order as the floats do, so 32 halvings of
    the range of int32 find the lowest key exactly.
    """
    order = ordered(keys)
    low = torch.full_like(target, _LOWEST, dtype=torch.int64)
    high = order.amax(-1).long()  # the best token stays even where its weight, or the target, is too small for a float
    for _ in range(32):
        middle = (low + high + 1) >> 1
        held = torch.where(order >= middle[:, None].to(torch.int32), weights, 0.0).sum(-1)
        enough = held >= target
        low = torch.where(enough, middle, low)
        high = torch.where(enough, high, middle - 1)
    return order >= low[:, None].to(torch.int32)


def ordered(values: Tensor) -> Tensor:
    """int32 numbers that order as the fp32 values do."""
    bits = (values + 0.0).view(torch.int32)  # minus zero becomes zero
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
