"""Landing: where the tokens of steps in flight come to on the host.

Pinned memory is slow to ask for and to give back, so a place is used again once its tokens have been read.
"""

import torch
from torch import Tensor

from octavo.platform.base import Platform
from octavo.worker.staging import Longs

_INTS = 2  # int32 places of a token


class Landing:
    """Places of `max_rows` tokens, as many as there are steps in flight."""

    def __init__(self, platform: Platform, max_rows: int) -> None:
        self._platform = platform
        self._max_rows = max_rows
        self._free: list[Landed] = []

    def take(self, tokens: Tensor) -> "Landed":
        """Enqueue the copy of tokens ``[S]`` int64 to the host."""
        if self._free:
            landed = self._free.pop()
        else:
            landed = Landed(self._platform.staging(_INTS * self._max_rows).view(torch.int64), self._free)
        landed.take(tokens)
        return landed


class Landed:
    """A place, and how many tokens are on their way to it."""

    def __init__(self, place: Tensor, free: "list[Landed]") -> None:
        self._place = place
        self._free = free
        self._tokens: Tensor = place
        self._numbers: Longs = place.numpy()

    def take(self, tokens: Tensor) -> None:
        """Enqueue the copy."""
        if tokens.shape != self._tokens.shape:
            self._tokens = self._place[: tokens.shape[0]]
            self._numbers = self._tokens.numpy()
        self._tokens.copy_(tokens, non_blocking=True)

    def read(self) -> list[int]:
        """The tokens, once, after the copy; the place is free then."""
        tokens: list[int] = self._numbers.tolist()
        self._free.append(self)
        return tokens
