"""What every layer is built with: the operations, the form of its weights, their type, place and memory."""

from dataclasses import dataclass

import torch

from octavo.kernels.ops import Ops
from octavo.nn.quant.base import Empty, QuantMethod


@dataclass(frozen=True, slots=True)
class Kit:
    ops: Ops
    method: QuantMethod
    dtype: torch.dtype
    device: torch.device
    empty: Empty
