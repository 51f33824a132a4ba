"""Gated activations of the feed-forward half, in plain torch."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from octavo.base.errors import UnknownName


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": _gelu_tanh}


def act_mul(x: Tensor, activation: str) -> Tensor:
    """``[T, 2 I] -> [T, I]``: activation of the first half times the second half."""
    if activation not in ACTIVATIONS:
        raise UnknownName("activation", activation, ACTIVATIONS)
    gate, up = x.chunk(2, dim=-1)
    return ACTIVATIONS[activation](gate).mul_(up)
