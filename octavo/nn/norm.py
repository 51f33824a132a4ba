"""RMS norm layer."""

import torch
from torch import Tensor, nn

from octavo.kernels.entry import Entry
from octavo.nn.kit import Kit


class RmsNorm(nn.Module):
    """Norm over `size` elements. The weight is kept in fp32 and with the offset (Gemma's one) already added:
    in bf16 the sum would lose most of a small weight's bits."""

    def __init__(self, size: int, eps: float, offset: float, kit: Kit) -> None:
        super().__init__()
        self.ops = kit.ops
        self.eps = eps
        self.offset = offset
        self.weight = nn.Parameter(kit.empty((size,), torch.float32), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Norm of ``residual + x`` and that sum; without a residual, x is the sum."""
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps)

    def load_weight(self, entry: Entry) -> None:
        self.weight.copy_(entry.load(torch.float32)).add_(self.offset)
