"""Penalties for what was said, in two launches that look at the tokens said and not at the vocabulary.

The first counts each row's tokens into a buffer of zeros. In the second every token takes its count away and leaves
zero: the first of equals gets it and changes the logit, the others find nothing, and the buffer is clean again.
Legend: S rows, V vocabulary, R lines.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.context import Said
from octavo.kernels.triton.common import LAUNCH, let_next_start, wait_for_inputs

_TOKENS = 512  # looked at together
_PROGRAMS = 8  # of a row
_PROMPT = tl.constexpr(-(1 << 31))  # the bit that a token of the prompt sets; those of the output are counted below it
_COLUMNS = ["repetition_ptr", "frequency_ptr", "presence_ptr", "num_prompt_ptr"]


@triton.jit(
    do_not_specialize=["stride_line", "stride_columns"],
    do_not_specialize_on_alignment=["rows_ptr", "lengths_ptr", *_COLUMNS],
)
def _penalize(
    logits_ptr, counts_ptr, lines_ptr, rows_ptr, lengths_ptr, num_prompt_ptr, repetition_ptr, frequency_ptr,
    presence_ptr, stride_logits, stride_counts, stride_line, stride_columns,
    TOKENS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    let_next_start()
    wait_for_inputs()
    repetition = tl.load(repetition_ptr + row * stride_columns)
    frequency = tl.load(frequency_ptr + row * stride_columns)
    presence = tl.load(presence_ptr + row * stride_columns)
    if (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0):
        line = lines_ptr + tl.load(rows_ptr + row).to(tl.int64) * stride_line
        length = tl.load(lengths_ptr + row).to(tl.int32)
        prompt = tl.load(num_prompt_ptr + row * stride_columns)
        counts = counts_ptr + row.to(tl.int64) * stride_counts
        logits = logits_ptr + row.to(tl.int64) * stride_logits
        for start in range(tl.program_id(1) * TOKENS, length, tl.num_programs(1) * TOKENS):
            place = start + tl.arange(0, TOKENS)
            inside = place < length
            token = tl.load(line + place, mask=inside, other=0)
            if COUNT:
                said = place >= prompt
                tl.atomic_or(counts + token, tl.full((TOKENS,), _PROMPT, tl.int32), mask=inside & (place < prompt))
                tl.atomic_add(counts + token, tl.full((TOKENS,), 1, tl.int32), mask=inside & said)
            else:
                found = tl.atomic_xchg(counts + token, tl.full((TOKENS,), 0, tl.int32), mask=inside)
                mine = inside & (found != 0)
                times = (found & 0x7FFFFFFF).to(tl.float32)
                x = tl.load(logits + token, mask=mine, other=0.0)
                x = tl.where(x > 0, x * (1.0 / repetition), x * repetition)
                x = x - frequency * times
                x = x - tl.where(times > 0, presence, 0.0)
                tl.store(logits + token, x, mask=mine)


def penalize(logits: torch.Tensor, counts: torch.Tensor, said: Said) -> None:
    """As `Penalize` in kernels/ops: logits and counts ``[S, V]``."""
    rows = logits.shape[0]
    for count in (True, False) if rows else ():
        _penalize[(rows, _PROGRAMS)](
            logits,
            counts,
            said.lines,
            said.rows,
            said.lengths,
            said.num_prompt,
            said.repetition,
            said.frequency,
            said.presence,
            logits.stride(0),
            counts.stride(0),
            said.lines.stride(0),
            said.num_prompt.stride(0),
            TOKENS=_TOKENS,
            COUNT=count,
            num_warps=4,
            **LAUNCH,
        )
