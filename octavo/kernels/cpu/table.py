"""The CPU kernels' entries of the table of operations, and what numpy does better than torch there."""

import numpy as np
import torch
from torch import Tensor

from octavo.kernels.cpu.loader import machine
from octavo.kernels.ops import Ops
from octavo.kernels.ref.sample import greedy as plain_greedy

WITHIN_LAYERS = (
    "rms_norm",
    "add_rms_norm",
    "act_mul",
    "qkv_prologue",
    "paged_attention",
    "linear",
    "linear_parts",
    "normed_linear",
)
"""What models/native.py does itself, a step in one call: its table has these for models that it does not take."""


def overlay(ops: Ops) -> Ops:
    """The table with what the kernels have in place of the reference's."""
    return ops.overlay("native", greedy=greedy, forbid=forbid)


def greedy(logits: Tensor) -> Tensor:
    """See kernels/ops.Greedy."""
    if logits.dtype != torch.float32 or logits.stride(-1) != 1:
        return plain_greedy(logits)
    best, place = torch.empty(logits.shape[0]), torch.empty(logits.shape[0], dtype=torch.int64)
    rows, columns = logits.shape
    machine().argmax(logits.data_ptr(), rows, columns, logits.stride(0), best.data_ptr(), place.data_ptr())
    return torch.where(best.isfinite(), place, -1)


def forbid(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """See kernels/ops.Forbid."""
    values, vocab = logits.numpy(), logits.shape[1]
    forbidden = np.unpackbits(~masks.numpy().view(np.uint8), axis=1, count=vocab, bitorder="little").view(np.bool_)
    for row, mask in zip(rows.tolist(), forbidden):
        if row >= 0:
            line = values[row]
            np.copyto(line, -np.inf, where=np.logical_and(mask, line < np.inf, out=mask))
