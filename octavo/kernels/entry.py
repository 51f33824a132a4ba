"""What layers and kernels are filled from."""

from typing import Protocol

import torch
from torch import Tensor


class Entry(Protocol):
    """One tensor of a checkpoint, not read yet (weights/source.py makes them)."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def qtype(self) -> str:
        """How it is stored: F32, F16, BF16, or the name of a block format such as Q4_K."""
        ...

    def load(self, dtype: torch.dtype) -> Tensor:
        """The tensor in full, in `dtype`, on the source's device, where block formats are expanded. The memory is the
        caller's. Raises ModelFileError."""
        ...

    def raw(self) -> Tensor:
        """The stored bytes ``[rows, row bytes]`` (uint8, read-only where mapped), rows in Hugging Face order."""
        ...
