"""QuantMethod: the seam between a linear layer and the form its weight is kept in."""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from octavo.kernels.ops import Ops


class Entry(Protocol):
    """One tensor of a checkpoint, not read yet (weights/source.py makes them)."""

    @property
    def shape(self) -> Any: ...

    def load(self, dtype: torch.dtype) -> Tensor: ...


class QuantMethod(ABC):
    """Owns a linear layer's weight. The layer's outputs are stacked shards (q, k, v; gate, up), rows of the weight."""

    @abstractmethod
    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Register the parameters on the layer, their contents unset."""

    @abstractmethod
    def load(self, layer: nn.Module, rows: slice, entry: Entry) -> None:
        """Fill some rows of the weight from a tensor ``[rows, in_features]`` of the checkpoint."""

    @abstractmethod
    def apply(self, ops: Ops, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """``[T, in_features] -> [T, out_features]``."""

    def apply_normed(
        self,
        ops: Ops,
        layer: nn.Module,
        x: Tensor,
        residual: Tensor | None,
        norm: Tensor,
        eps: float,
        bias: Tensor | None,
        activation: str | None,
    ) -> tuple[Tensor, Tensor]:
        """The product of the norm of ``residual + x``, perhaps gated, and that sum; see kernels/ops.NormedLinear.

        Put together from its parts; a format with a fused kernel overrides it.
        """
        if residual is None:
            normed, total = ops.rms_norm(x, norm, eps), x
        else:
            normed, total = ops.add_rms_norm(x, residual, norm, eps)
        y = self.apply(ops, layer, normed, bias)
        return (y if activation is None else ops.act_mul(y, activation)), total
