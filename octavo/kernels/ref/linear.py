"""Matrix product, in plain torch."""

from torch import Tensor
from torch.nn import functional as F

from octavo.kernels.context import Norm
from octavo.kernels.ref.act import act_mul
from octavo.kernels.ref.norm import add_rms_norm


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``[T, E] x [O, E] -> [T, O]``."""
    return F.linear(x, weight, bias)


def linear_parts(x: Tensor, weight: Tensor) -> Tensor:
    """See kernels/ops.LinearParts: whole, ``[T, E] x [O, E] -> [T, O]``."""
    return linear(x, weight, None)


def normed_linear(
    x: Tensor, norm: Norm, weight: Tensor, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor]:
    """See kernels/ops.NormedLinear."""
    normed, total = add_rms_norm(x, norm.residual, norm.weight, norm.eps)
    y = linear(normed, weight, bias)
    return (y if activation is None else act_mul(y, activation)), total
