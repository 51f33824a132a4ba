"""Rows of the token table, one program a token.

Every step with tokens begins with staging and this. It is launched the ordinary way: once it runs, what staging wrote
is whole, so all kernels behind it may read lengths, slots and block tables before they wait for the kernel before them.
Legend: T tokens, V vocabulary, E hidden size.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.common import let_next_start, pow2

_MOST = 2048  # numbers that a program copies at once


@triton.jit
def _embed(ids_ptr, table_ptr, out_ptr, stride, E: tl.constexpr, BLOCK: tl.constexpr):
    let_next_start()
    token = tl.program_id(0).to(tl.int64)
    source = table_ptr + tl.load(ids_ptr + token).to(tl.int64) * stride
    for first in tl.static_range(0, E, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < E
        tl.store(out_ptr + token * E + column, tl.load(source + column, mask=inside), mask=inside)


def embed(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """As `Embed` in kernels/ops: ids ``[T]``, table ``[V, E] -> [T, E]``."""
    tokens, size = ids.shape[0], table.shape[1]
    out = torch.empty((tokens, size), dtype=table.dtype, device=table.device)
    if tokens:
        _embed[(tokens,)](ids, table, out, table.stride(0), E=size, BLOCK=min(_MOST, pow2(size)), num_warps=4)
    return out
