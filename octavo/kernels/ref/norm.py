"""RMS norm (Zhang and Sennrich 2019), in plain torch."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm over the last dimension in fp32: ``[..., E], [E] -> [..., E]`` of x's type."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    return (wide * scale).mul_(weight).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normed sum and the sum: ``[T, E] x 2 -> [T, E] x 2``; x may be parts ``[S, T, E]``."""
    if residual is None:
        return rms_norm(x, weight, eps), x
    if x.dim() > residual.dim():
        x = x.sum(0).to(residual.dtype)
    total = x + residual
    return rms_norm(total, weight, eps), total
