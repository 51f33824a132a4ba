"""Tokens forbidden by bits, in place: one program a part of the vocabulary and a masked row.

Logits that stay are not even read. Legend: K masked rows, V vocabulary, W words of 32 tokens in a part.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.common import LAUNCH, let_next_start, wait_for_inputs

_WORDS = 128


@triton.jit
def _forbid(logits_ptr, rows_ptr, masks_ptr, stride, V, W: tl.constexpr):
    place = tl.program_id(0)
    word = tl.program_id(1) * W + tl.arange(0, W)
    bit = tl.arange(0, 32)
    let_next_start()
    wait_for_inputs()
    words = tl.cdiv(V, 32)
    row = tl.load(rows_ptr + place).to(tl.int64)
    if row >= 0:
        allowed = tl.load(masks_ptr + place.to(tl.int64) * words + word, mask=word < words, other=-1)
        token = word[:, None] * 32 + bit[None, :]
        forbidden = ((allowed[:, None] >> bit[None, :]) & 1) == 0
        at = logits_ptr + row * stride + token
        x = tl.load(at, mask=forbidden & (token < V), other=float("inf"))
        tl.store(at, float("-inf"), mask=x < float("inf"))


def forbid(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """As `Forbid` in kernels/ops: logits ``[S, V]``, rows ``[K]``, masks ``[K, ceil(V / 32)]``."""
    vocab = logits.shape[1]
    if rows.shape[0]:
        parts = triton.cdiv(vocab, 32 * _WORDS)
        _forbid[(rows.shape[0], parts)](logits, rows, masks, logits.stride(0), vocab, W=_WORDS, **LAUNCH)
