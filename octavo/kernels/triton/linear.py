"""Which kernel a linear layer takes: ours for one token and for tens of them, cuBLAS for more.

Bounds are what was measured on an H200 with the layers of 0.6B and 8B models. fp32 stays with cuBLAS: there a sum
should not depend on how many tokens stand beside it. On Hopper linear_early is for one token too: linear_one, whose
weights go through the L1 cache, is a fifth slower there beside kernels that take most of that memory for their own.
Legend: T tokens, K input size, N output features, S parts of K.
"""

import torch

from octavo.kernels import cublas
from octavo.kernels.context import Norm
from octavo.kernels.triton.act import act_mul
from octavo.kernels.triton.hopper import HOPPER
from octavo.kernels.triton.linear_one import fits_one, one_token_linear
from octavo.kernels.triton.linear_shape import shape_in_parts, shape_whole
from octavo.kernels.triton.linear_some import some_token_linear
from octavo.kernels.triton.norm import add_rms_norm


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``[T, K] x [N, K] -> [T, N]``."""
    shape = shape_whole(x, weight.shape[0], gate=False)
    if shape is not None:
        return some_token_linear(x, weight, bias, shape)
    return one_token_linear(x, weight, bias)[0] if fits_one(x) else cublas.linear(x, weight, bias)


def linear_parts(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As `LinearParts` in kernels/ops: ``[S, T, N]`` where the features alone would not keep the device busy."""
    shape = shape_in_parts(x, weight.shape[0])
    return linear(x, weight, None) if shape is None else some_token_linear(x, weight, None, shape)


def normed_linear(
    x: torch.Tensor, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `NormedLinear` in kernels/ops: one kernel for one token (two on Hopper), two for tens, three for more."""
    if fits_one(x) and not HOPPER:
        y, total = one_token_linear(x, weight, bias, norm, activation or "none")
        return y, x if total is None else total
    normed, total = add_rms_norm(x, norm.residual, norm.weight, norm.eps)
    if activation is None:
        return linear(normed, weight, bias), total
    shape = shape_whole(normed, weight.shape[0] // 2, gate=True)
    if shape is not None:
        return some_token_linear(normed, weight, bias, shape, activation), total
    return act_mul(cublas.linear(normed, weight, bias), activation), total
