"""Linear layers whose outputs may be several of the checkpoint's matrices, stacked."""

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor, nn

from octavo.kernels.context import Norm
from octavo.kernels.entry import Entry
from octavo.nn.kit import Kit
from octavo.nn.norm import RmsNorm


class Linear(nn.Module):
    """``[T, in_features] -> [T, sum(shards)]``; `shards` are the heights of the stacked matrices."""

    def __init__(
        self,
        in_features: int,
        shards: Sequence[int],
        bias: bool,
        kit: Kit,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.shards = tuple(shards)
        self.ops = kit.ops
        self.method = kit.method
        self.method.create(self, in_features, sum(shards), kit.dtype, kit.empty)
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(kit.empty((sum(shards),), kit.dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.method.apply(self.ops, self, x, self.bias)

    def before_norm(self, x: Tensor) -> Tensor:
        """The same for a product that goes to the next norm, which takes it in parts (kernels/ops.LinearParts) too."""
        return self(x) if self.bias is not None else self.method.apply_parts(self.ops, self, x)

    def after_norm(
        self, norm: RmsNorm, x: Tensor, residual: Tensor | None, activation: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """The product of the norm of ``residual + x``, and that sum; with an activation its two shards are gated."""
        return self.method.apply_normed(self.ops, self, x, Norm(norm.weight, norm.eps, residual), self.bias, activation)

    def rows(self, shard: int | None) -> slice:
        """Rows of the weight that a shard takes; None: all."""
        if shard is None:
            return slice(0, sum(self.shards))
        ends = list(accumulate(self.shards))
        return slice(ends[shard] - self.shards[shard], ends[shard])

    def load_weight(self, shard: int | None, entry: Entry) -> None:
        self.method.load(self, self.rows(shard), entry)

    def load_bias(self, shard: int | None, entry: Entry) -> None:
        assert self.bias is not None
        self.bias[self.rows(shard)].copy_(entry.load(self.bias.dtype))
