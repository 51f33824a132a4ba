"""QuantMethod: the seam between a linear layer and the form its weight is kept in."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from octavo.kernels.ops import Ops


class Entry(Protocol):
    """One tensor of a checkpoint, not read yet (weights/source.py makes them)."""

    @property
    def shape(self) -> Any: ...

    def load(self, dtype: torch.dtype) -> Tensor: ...


class QuantMethod(Protocol):
    """Owns a linear layer's weight. The layer's outputs are stacked shards (q, k, v; gate, up), rows of the weight."""

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Register the parameters on the layer, their contents unset."""
        ...

    def load(self, layer: nn.Module, rows: slice, entry: Entry) -> None:
        """Fill some rows of the weight from a tensor ``[rows, in_features]`` of the checkpoint."""
        ...

    def apply(self, ops: Ops, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """``[T, in_features] -> [T, out_features]``."""
        ...
