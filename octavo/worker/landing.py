"""Landing: where what steps in flight give comes to on the host.

Pinned memory is slow to ask for and to give back, so a place is used again once its numbers have been read.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.platform.base import Platform

_BYTES = 4  # of the numbers that staging memory is counted in


class Landing:
    """Places for tensors of one type, as many as there are steps in flight."""

    def __init__(self, platform: Platform, dtype: torch.dtype, length: int) -> None:
        """`length`: numbers that a place has from the first; one that is too small gives way to one twice as large."""
        self._platform = platform
        self._length = length
        self._dtype = dtype
        self._free: list[Landed] = []

    def take(self, tensor: Tensor) -> "Landed":
        """Enqueue the copy of a tensor to the host."""
        landed = self._free.pop() if self._free else None
        if landed is None or landed.size < tensor.numel():
            while self._length < tensor.numel():
                self._length *= 2
            place = self._platform.staging(self._length * self._dtype.itemsize // _BYTES)
            landed = Landed(place.view(self._dtype), self._free)
        landed.take(tensor)
        return landed


class Landed:
    """A place, and what is on its way to it."""

    def __init__(self, place: Tensor, free: "list[Landed]") -> None:
        self.size = place.numel()
        self._place = place
        self._free = free
        self._tensor: Tensor = place
        self._numbers: npt.NDArray[Any] = place.numpy()

    def take(self, tensor: Tensor) -> None:
        """Enqueue the copy."""
        if tensor.shape != self._tensor.shape:
            self._tensor = self._place[: tensor.numel()].view(tensor.shape)
            self._numbers = self._tensor.numpy()
        self._tensor.copy_(tensor, non_blocking=True)

    def read(self) -> npt.NDArray[Any]:
        """The numbers, once, after the copy; the place is free then."""
        numbers = np.copy(self._numbers)
        self._free.append(self)
        return numbers

    def read_list(self) -> list[Any]:
        """The same as a list."""
        numbers: list[Any] = self._numbers.tolist()
        self._free.append(self)
        return numbers
