"""Repetition, frequency and presence penalties (Keskar et al. 2019, CTRL; OpenAI's API), in plain torch."""

import torch
from torch import Tensor

from octavo.kernels.context import Said


def penalize(logits: Tensor, counts: Tensor, said: Said) -> None:
    """See kernels/ops.Penalize: logits and counts ``[S, V]``."""
    ids = said.lines.index_select(0, said.rows).long()
    place = torch.arange(ids.shape[1], device=ids.device)
    known = place < said.lengths[:, None]
    host = not logits.is_cuda  # a CPU answers at once what can be left out
    if not host or bool((said.repetition != 1.0).any()):
        _count(counts, ids, known)
        factor = said.repetition[:, None].masked_fill(counts == 0, 1.0)
        logits.mul_(torch.where(logits > 0, 1.0 / factor, factor))
        counts.zero_()
    if not host or bool((said.frequency != 0.0).any() | (said.presence != 0.0).any()):
        _count(counts, ids, known & (place >= said.num_prompt[:, None]))
        logits.sub_(said.frequency[:, None] * counts)
        logits.sub_(said.presence[:, None] * (counts > 0))
        counts.zero_()


def _count(counts: Tensor, ids: Tensor, where: Tensor) -> None:
    counts.scatter_add_(1, ids, where.to(torch.int32))
