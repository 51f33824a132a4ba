"""The input of a step, made on the device from the request table: one program a token and a row.

Legend: T tokens, R rows, S sampled rows, G KV groups, B block size.
"""

import triton
import triton.language as tl

from octavo.kernels.ahead import Lines, Sent, StepInput
from octavo.kernels.triton.common import LAUNCH, find_row, let_next_start, wait_for_inputs

_COPY = 512  # block table places copied at once


# Strides are only multiplied once a row: knowing what divides them is worth no further compilation.
@triton.jit(
    do_not_specialize=[
        "num_rows",
        "num_tokens",
        "num_sampled",
        "scratch",
        "stride_line",
        "stride_prompt",
        "stride_plane",
        "stride_row",
        "stride_slots",
        "stride_table_plane",
        "stride_table_row",
        "stride_sampled",
    ]
)
def _stage(
    tokens_ptr,
    blocks_ptr,
    num_prompt_ptr,
    rows_ptr,
    query_start_ptr,
    seq_lens_ptr,
    input_ids_ptr,
    positions_ptr,
    prompt_lens_ptr,
    slots_ptr,
    table_ptr,
    sampled_ptr,
    index_ptr,
    owner_ptr,
    end_ptr,
    grown_ptr,
    num_rows,
    num_tokens,
    num_sampled,
    scratch,
    stride_line,
    stride_prompt,
    stride_plane,
    stride_row,
    stride_slots,
    stride_table_plane,
    stride_table_row,
    stride_sampled,
    G: tl.constexpr,
    B: tl.constexpr,
    COPY: tl.constexpr,
):
    me = tl.program_id(0)
    let_next_start()
    wait_for_inputs()
    if me < num_tokens:
        used = tl.load(query_start_ptr + num_rows)
        mine = me < used
        at = tl.where(mine, find_row(query_start_ptr, tl.minimum(me, used - 1), num_rows), 0)
        row = tl.where(mine, tl.load(rows_ptr + at), scratch).to(tl.int64)
        position = tl.load(seq_lens_ptr + at) - tl.load(query_start_ptr + at + 1) + me
        position = tl.where(mine, position, 0)
        tl.store(input_ids_ptr + me, tl.load(tokens_ptr + row * stride_line + position).to(tl.int64))
        tl.store(positions_ptr + me, position.to(tl.int64))
        tl.store(prompt_lens_ptr + me, tl.load(num_prompt_ptr + row * stride_prompt).to(tl.int64))
        for group in tl.static_range(G):
            block = tl.load(blocks_ptr + group * stride_plane + row * stride_row + position // B)
            new = tl.load(grown_ptr + 2 * group * num_rows + at)  # its store may not have come about yet
            block = tl.where(new == position // B, tl.load(grown_ptr + (2 * group + 1) * num_rows + at), block)
            block = block.to(tl.int64)
            tl.store(slots_ptr + group * stride_slots + me, tl.where(mine, block * B + position % B, 0))
    if me < num_rows:
        row = tl.load(rows_ptr + me).to(tl.int64)
        count = tl.cdiv(tl.load(seq_lens_ptr + me), B)
        place = tl.arange(0, COPY)
        for group in tl.static_range(G):
            source = blocks_ptr + group * stride_plane + row * stride_row
            target = table_ptr + group * stride_table_plane + me.to(tl.int64) * stride_table_row
            new = tl.load(grown_ptr + 2 * group * num_rows + me)
            fresh = tl.load(grown_ptr + (2 * group + 1) * num_rows + me)
            tl.store(source + new, fresh, mask=new >= 0)
            for first in range(0, count, COPY):
                inside = first + place < count
                block = tl.load(source + first + place, mask=inside, other=0)
                tl.store(target + first + place, tl.where(first + place == new, fresh, block), mask=inside)
    if me < num_sampled:
        tl.store(sampled_ptr + me, tl.load(index_ptr + me).to(tl.int64))
        tl.store(sampled_ptr + stride_sampled + me, tl.load(owner_ptr + me).to(tl.int64))
        tl.store(sampled_ptr + 2 * stride_sampled + me, tl.load(end_ptr + me).to(tl.int64))


def stage(lines: Lines, into: StepInput, sent: Sent, block_size: int) -> None:
    """As `AheadOps.stage`."""
    num_tokens, num_rows = into.input_ids.shape[0], sent.rows.shape[0]
    _stage[(max(num_tokens, num_rows),)](
        lines.tokens,
        lines.blocks,
        lines.num_prompt,
        sent.rows,
        sent.query_start,
        sent.seq_lens,
        into.input_ids,
        into.positions,
        into.prompt_lens,
        into.slots,
        into.block_table,
        into.sampled,
        *sent.sampled,
        sent.grown,
        num_rows,
        num_tokens,
        into.sampled.shape[1],
        lines.tokens.shape[0] - 1,
        lines.tokens.stride(0),
        lines.num_prompt.stride(0),
        lines.blocks.stride(0),
        lines.blocks.stride(1),
        into.slots.stride(0),
        into.block_table.stride(0),
        into.block_table.stride(1),
        into.sampled.stride(0),
        G=lines.blocks.shape[0],
        B=block_size,
        COPY=_COPY,
        num_warps=1,
        **LAUNCH,
    )
