"""The product of linear_some with its tiles brought by bulk copies (Hopper on: the tensor memory accelerator).

One thread names a tile, by row and column; hardware works out the addresses, lays the tile into shared memory as the
tensor cores read it, and gives zeros for rows that there are not. The warps are left with the products alone. A gated
product gained nothing by it and has no such kernel.

What a matrix is to that hardware (address, rows, stride) goes along with the launch by value: nothing of it is kept.

Legend: T tokens, K input size, N output features, S parts of K.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.common import let_next_start, wait_for_inputs
from octavo.kernels.triton.target import target_here

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # a Triton that has moved it: plain loads, then
    TensorDescriptor = None

BULK = TensorDescriptor is not None and target_here().capability >= (9, 0)
_ALIGNED = 16  # bytes, of the first number and of a row's length
_TYPES = (torch.bfloat16, torch.float16)


def readable(matrix: torch.Tensor) -> bool:
    """Whether bulk copies can read it: numbers of 16 bits side by side in rows that begin at whole 16 bytes."""
    row = matrix.stride(0) * matrix.element_size()
    side_by_side = matrix.stride(1) == 1 and matrix.dtype in _TYPES
    return side_by_side and row % _ALIGNED == 0 and matrix.data_ptr() % _ALIGNED == 0


def tiles(matrix: torch.Tensor, rows: int, columns: int) -> Any:
    """The matrix as a kernel's argument, to be read in tiles of ``[rows, columns]``."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns])


@triton.jit(do_not_specialize=["T"])
def some_tokens_in_bulk(
    x_tiles, w_tiles, b_ptr, y_ptr, T, N,
    MINE: tl.constexpr, FEATURES: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    SPLIT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    let_next_start()
    part = tl.program_id(2)
    first_feature, first_token = tl.program_id(0) * FEATURES, tl.program_id(1) * TOKENS
    wait_for_inputs()
    acc = tl.zeros((FEATURES, TOKENS), tl.float32)
    for k in tl.range(0, MINE, DEPTH, num_stages=STAGES):
        column = part * MINE + k
        x = x_tiles.load([first_token, column])
        acc = tl.dot(w_tiles.load([first_feature, column]), x.T, acc)
    feature, token = first_feature + tl.arange(0, FEATURES), first_token + tl.arange(0, TOKENS)
    if BIAS:
        acc += tl.load(b_ptr + feature, mask=feature < N, other=0.0).to(tl.float32)[:, None]
    row = token.to(tl.int64)
    if SPLIT:
        row += part.to(tl.int64) * T
    real = (feature[:, None] < N) & (token[None, :] < T)
    tl.store(y_ptr + row[None, :] * N + feature[:, None], acc.to(y_ptr.dtype.element_ty), mask=real)
