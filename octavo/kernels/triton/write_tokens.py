"""Drawn tokens into the lines of their requests, in one launch. Legend: S tokens."""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.common import LAUNCH, let_next_start, wait_for_inputs

_TOKENS = 128  # of one program


@triton.jit(do_not_specialize=["count", "stride"])
def _write_tokens(lines_ptr, rows_ptr, positions_ptr, tokens_ptr, count, stride, TOKENS: tl.constexpr):
    place = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = place < count
    let_next_start()
    wait_for_inputs()
    row = tl.load(rows_ptr + place, mask=inside, other=0)
    position = tl.load(positions_ptr + place, mask=inside, other=0)
    token = tl.load(tokens_ptr + place, mask=inside, other=0)
    tl.store(lines_ptr + row * stride + position, tl.maximum(token, 0).to(tl.int32), mask=inside)


def write_tokens(lines: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> None:
    """As `WriteTokens` in kernels/ops: lines ``[R, places]``, the others ``[S]``."""
    count = tokens.shape[0]
    if count:
        grid = (triton.cdiv(count, _TOKENS),)
        _write_tokens[grid](
            lines, rows, positions, tokens, count, lines.stride(0), TOKENS=_TOKENS, num_warps=4, **LAUNCH
        )
