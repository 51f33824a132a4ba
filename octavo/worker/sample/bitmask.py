"""The rule of token masks: one bit a token, filled on the host while the device computed the logits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.kernels.ops import Forbid
from octavo.platform.base import Platform
from octavo.worker.staging import Ints, ints


@dataclass(frozen=True, slots=True)
class Laid:
    """Device memory that stays in place, for captured work to read."""

    rows: Tensor  # [K] int32
    masks: Tensor  # [K, ceil(V / 32)] int32


def laid_masks(platform: Platform, rows: int, vocab_size: int) -> Laid:
    """For steps of up to `rows` rows; nobody's yet."""
    masks = platform.zeros((rows, -(-vocab_size // 32)), torch.int32)
    return Laid(platform.zeros((rows,), torch.int32).fill_(-1), masks)


class BitMask:
    """Reads a rider ``(rows [K] int32, masks [K, ceil(V / 32)] int32)``: indexes into the sampled rows in any order,
    and for each a bit a token, set where the token may be drawn.

    Masks lie in memory of `Worker.host_memory` and stay as they are until the step's result is there, so they go to the
    device from where they are. `send` takes small host arrays there. `laid` is needed for captured work only.
    """

    def __init__(
        self,
        vocab_size: int,
        send: Callable[[list[Ints]], list[Tensor]],
        forbid: Forbid,
        laid: Laid | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._send = send
        self._forbid = forbid
        self._laid = laid
        self._laid_rows: Ints | None = None

    def apply(self, logits: Tensor, payload: Any) -> None:
        rows, masks = self._checked(payload)
        words = torch.from_numpy(masks).to(logits.device, non_blocking=True)
        self._forbid(logits, self._send([ints(rows)])[0], words)

    def lay(self, payload: Any) -> None:
        rows, masks = self._checked(payload)
        assert self._laid is not None
        if self._laid_rows is None or not np.array_equal(rows, self._laid_rows):
            self._laid_rows = None  # should it fail half way
            padded = np.full(self._laid.rows.shape[0], -1, dtype=np.int32)
            padded[: rows.size] = rows
            self._laid.rows.copy_(self._send([padded])[0])
            self._laid_rows = rows.copy()
        self._laid.masks[: rows.size].copy_(torch.from_numpy(masks), non_blocking=True)

    def work(self, logits: Tensor) -> None:
        assert self._laid is not None
        count = logits.shape[0]
        self._forbid(logits, self._laid.rows[:count], self._laid.masks[:count])

    def _checked(self, payload: Any) -> tuple[Ints, Ints]:
        rows, masks = payload
        if masks.dtype != np.int32 or masks.shape != (rows.size, -(-self._vocab_size // 32)):
            raise ValueError(f"masks of {masks.shape} for {rows.size} rows of {self._vocab_size} tokens")
        return rows, masks
