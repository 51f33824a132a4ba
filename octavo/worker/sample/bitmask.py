"""The rule of token masks: one bit a token, filled on the host while the device computed the logits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.worker.sample.masks import NEVER
from octavo.worker.staging import Ints, ints

BITS = (1 << np.arange(32, dtype=np.uint32)).view(np.int32)


class BitMask:
    """Reads a rider ``(rows [K] int32, masks [K, ceil(V / 32)] int32)``: indexes into the sampled rows, and for each
    a bit a token, set where the token may be drawn. `send` takes host arrays to the device in one copy."""

    def __init__(self, vocab_size: int, send: Callable[[list[Ints]], list[Tensor]]) -> None:
        self._vocab_size = vocab_size
        self._send = send
        self._bits: Tensor | None = None

    def apply(self, logits: Tensor, payload: Any) -> None:
        rows, masks = payload
        if masks.dtype != np.int32 or masks.shape != (rows.size, -(-self._vocab_size // 32)):
            raise ValueError(f"masks of {masks.shape} for {rows.size} rows of {self._vocab_size} tokens")
        index, words = self._send([ints(rows), masks])
        if self._bits is None or self._bits.device != logits.device:
            self._bits = torch.from_numpy(BITS).to(logits.device)
        bits = words.view(masks.shape)[:, :, None].bitwise_and(self._bits)
        forbidden = bits.eq(0).view(rows.size, -1)[:, : self._vocab_size]
        if rows.size == logits.shape[0]:
            logits.masked_fill_(forbidden, NEVER)  # the riders come in the order of the sampled rows
            return
        index = index.long()
        logits.index_copy_(0, index, logits.index_select(0, index).masked_fill_(forbidden, NEVER))
