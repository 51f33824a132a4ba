"""Rows of the token table, in plain torch."""

from torch import Tensor
from torch.nn import functional as F


def embed(ids: Tensor, table: Tensor) -> Tensor:
    """See kernels/ops.Embed: ``[T], [V, E] -> [T, E]``."""
    return F.embedding(ids, table)
