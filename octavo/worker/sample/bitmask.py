"""The rule of token masks: one bit a token, filled on the host while the device computed the logits."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from octavo.kernels.ops import Forbid
from octavo.worker.staging import Ints, ints


class BitMask:
    """Reads a rider ``(rows [K] int32, masks [K, ceil(V / 32)] int32)``: indexes into the sampled rows, and for each
    a bit a token, set where the token may be drawn. `send` takes host arrays to the device in one copy."""

    def __init__(self, vocab_size: int, send: Callable[[list[Ints]], list[Tensor]], forbid: Forbid) -> None:
        self._vocab_size = vocab_size
        self._send = send
        self._forbid = forbid

    def apply(self, logits: Tensor, payload: Any) -> None:
        rows, masks = payload
        if masks.dtype != np.int32 or masks.shape != (rows.size, -(-self._vocab_size // 32)):
            raise ValueError(f"masks of {masks.shape} for {rows.size} rows of {self._vocab_size} tokens")
        index, words = self._send([ints(rows), masks])
        self._forbid(logits, index, words.view(masks.shape))
