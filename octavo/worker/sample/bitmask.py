"""The rule of token masks: one bit a token, filled on the host while the device computed the logits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.kernels.ops import Forbid
from octavo.worker.staging import Ints, ints


class BitMask:
    """Reads a rider ``(rows [K] int32, masks [K, ceil(V / 32)] int32)``: indexes into the sampled rows, and for each
    a bit a token, set where the token may be drawn.

    Masks lie in memory of `Worker.host_memory` and stay as they are until the step's result is there, so they go to the
    device from where they are. `send` takes small host arrays there.
    """

    def __init__(self, vocab_size: int, send: Callable[[list[Ints]], list[Tensor]], forbid: Forbid) -> None:
        self._vocab_size = vocab_size
        self._send = send
        self._forbid = forbid
        self._all: Tensor | None = None  # 0, 1, 2...: most often all rows have a mask

    def apply(self, logits: Tensor, payload: Any) -> None:
        rows, masks = payload
        if masks.dtype != np.int32 or masks.shape != (rows.size, -(-self._vocab_size // 32)):
            raise ValueError(f"masks of {masks.shape} for {rows.size} rows of {self._vocab_size} tokens")
        words = torch.from_numpy(masks).to(logits.device, non_blocking=True)
        self._forbid(logits, self._index(rows, logits), words)

    def _index(self, rows: Ints, logits: Tensor) -> Tensor:
        if rows.size < logits.shape[0]:
            return self._send([ints(rows)])[0]
        if self._all is None or self._all.shape[0] < rows.size:
            self._all = torch.arange(1 << (rows.size - 1).bit_length(), dtype=torch.int32, device=logits.device)
        return self._all[: rows.size]
