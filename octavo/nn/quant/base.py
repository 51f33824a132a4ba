"""QuantMethod: the seam between a layer and the form its weight is kept in."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from octavo.kernels.context import Norm
from octavo.kernels.entry import Entry
from octavo.kernels.ops import Ops

Empty = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Makes a tensor of unset contents where a model's weights live."""


class QuantMethod(ABC):
    """Owns the weights of linear layers and of the token table."""

    @abstractmethod
    def create(self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype, empty: Empty) -> None:
        """Register a linear layer's parameters, their contents unset. Its outputs are stacked shards (q, k, v)."""

    @abstractmethod
    def load(self, layer: nn.Module, rows: slice, entry: Entry) -> None:
        """Fill some rows of the weight from a tensor ``[rows, in_features]`` of the checkpoint."""

    @abstractmethod
    def apply(self, ops: Ops, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """``[T, in_features] -> [T, out_features]``."""

    def apply_parts(self, ops: Ops, layer: nn.Module, x: Tensor) -> Tensor:
        """The product for a norm to take, perhaps in parts ``[S, T, out_features]``; see kernels/ops.LinearParts."""
        return self.apply(ops, layer, x, None)

    @abstractmethod
    def create_table(
        self, layer: nn.Module, vocab_size: int, hidden_size: int, dtype: torch.dtype, empty: Empty
    ) -> None:
        """Register a token table's parameters. ``layer.tied`` says whether it is the output matrix too."""

    @abstractmethod
    def load_table(self, layer: nn.Module, entry: Entry) -> None:
        """Fill the table from a tensor ``[vocab_size, hidden_size]``."""

    @abstractmethod
    def look_up(self, ops: Ops, layer: nn.Module, ids: Tensor) -> Tensor:
        """Rows of the table: ``[T] int64 -> [T, hidden_size]``."""

    @abstractmethod
    def apply_table(self, ops: Ops, layer: nn.Module, x: Tensor) -> Tensor:
        """A tied table as output matrix: ``[N, hidden_size] -> [N, vocab_size]``."""

    def drop(self, layer: nn.Module) -> int:  # noqa: ARG002 - most formats keep all in parameters
        """Let go of what `load` and `load_table` keep outside the layer's parameters, until they are called again;
        how many bytes that were."""
        return 0

    def loaded(self) -> None:  # noqa: B027 - most have nothing to do
        """All weights are there. A format may have something to do then."""

    def apply_normed(
        self, ops: Ops, layer: nn.Module, x: Tensor, norm: Norm, bias: Tensor | None, activation: str | None
    ) -> tuple[Tensor, Tensor]:
        """The product of the norm of ``residual + x``, perhaps gated, and that sum; see kernels/ops.NormedLinear.

        Put together from its parts; a format with a fused kernel overrides it.
        """
        normed, total = ops.add_rms_norm(x, norm.residual, norm.weight, norm.eps)
        y = self.apply(ops, layer, normed, bias)
        return (y if activation is None else ops.act_mul(y, activation)), total
