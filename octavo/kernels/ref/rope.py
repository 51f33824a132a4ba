"""Rotary embedding (Su et al. 2021), neox pairing, in plain torch."""

import torch
from torch import Tensor


def rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate the first dims of each head: ``[T, H, D], [T, rotary_dim] -> [T, H, D]``.

    cos_sin holds cosines, then sines, of half the rotary dims each. Dim i turns with dim i + rotary_dim / 2;
    dims from rotary_dim on pass through. Computed in fp32.
    """
    rotary_dim = cos_sin.shape[-1]
    half = rotary_dim // 2
    cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=-1)
    first, second, rest = x[..., :half], x[..., half:rotary_dim], x[..., rotary_dim:]
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat([*(part.to(x.dtype) for part in turned), rest], dim=-1)
