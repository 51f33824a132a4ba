"""The feed-forward half of a layer, gated (Shazeer 2020)."""

from torch import Tensor, nn

from octavo.models.arch import Mlp
from octavo.nn.kit import Kit
from octavo.nn.linear import Linear
from octavo.nn.norm import RmsNorm


class GatedMlp(nn.Module):
    """``down(act(gate(x)) * up(x))``: ``[T, E] -> [T, E]``; gate and up are one product."""

    def __init__(self, hidden_size: int, mlp: Mlp, kit: Kit) -> None:
        super().__init__()
        self.activation = mlp.activation
        self.ops = kit.ops
        self.gate_up = Linear(hidden_size, (mlp.intermediate_size, mlp.intermediate_size), mlp.bias, kit)
        self.down = Linear(mlp.intermediate_size, (hidden_size,), mlp.bias, kit)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.ops.act_mul(self.gate_up(x), self.activation))
        return out

    def after_norm(
        self, norm: RmsNorm, x: Tensor, residual: Tensor | None, *, parts: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The same of the norm of ``residual + x``, and that sum. `parts`: a norm follows, which takes it in parts."""
        gated, residual = self.gate_up.after_norm(norm, x, residual, self.activation)
        return (self.down.before_norm(gated) if parts else self.down(gated)), residual
