"""Weights as the checkpoint has them, in the model's type."""

import torch
from torch import Tensor, nn

from octavo.kernels.context import Norm
from octavo.kernels.entry import Entry
from octavo.kernels.ops import Ops
from octavo.nn.quant.base import Empty, QuantMethod


class Plain(QuantMethod):
    """A dense weight ``[out_features, in_features]``."""

    def create(self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype, empty: Empty) -> None:
        weight = empty((out_features, in_features), dtype)
        layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))

    def load(self, layer: nn.Module, rows: slice, entry: Entry) -> None:
        weight = layer.get_parameter("weight")
        weight[rows].copy_(entry.load(weight.dtype))

    def apply(self, ops: Ops, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return ops.linear(x, layer.get_parameter("weight"), bias)

    def apply_parts(self, ops: Ops, layer: nn.Module, x: Tensor) -> Tensor:
        return ops.linear_parts(x, layer.get_parameter("weight"))

    def create_table(
        self, layer: nn.Module, vocab_size: int, hidden_size: int, dtype: torch.dtype, empty: Empty
    ) -> None:
        self.create(layer, hidden_size, vocab_size, dtype, empty)

    def load_table(self, layer: nn.Module, entry: Entry) -> None:
        weight = layer.get_parameter("weight")
        weight.copy_(entry.load(weight.dtype))

    def look_up(self, ops: Ops, layer: nn.Module, ids: Tensor) -> Tensor:
        return ops.embed(ids, layer.get_parameter("weight"))

    def apply_table(self, ops: Ops, layer: nn.Module, x: Tensor) -> Tensor:
        return ops.linear(x, layer.get_parameter("weight"), None)

    def apply_normed(
        self, ops: Ops, layer: nn.Module, x: Tensor, norm: Norm, bias: Tensor | None, activation: str | None
    ) -> tuple[Tensor, Tensor]:
        return ops.normed_linear(x, norm, layer.get_parameter("weight"), bias, activation)
