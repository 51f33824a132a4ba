"""From a checkpoint's tensors to packed weights; csrc/format.h says how those lie in memory."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from octavo.kernels.cpu.loader import native
from octavo.kernels.entry import Entry

BLOCK_TYPES = {
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "IQ4_XS": 23,
}
"""ggml's ids of the block formats that stay quantized; Q2_K and Q3_K are kept in eight bits."""

FLOAT_TYPES = {"F32": 0, "F16": 1, "BF16": 30}
LAYOUTS = {"F32": 7, "F16": 8, "BF16": 9, "int8": 5, "int4": 1}
_TORCH_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


ONE_PLANE, TWO_PLANES = 1, 2

Parts = Sequence[tuple[Any, int, int]]
"""A stacked product for the kernels: (weight, its first output, address of that output's bias or 0)."""


def pack_rows(machine: Any, entry: Entry, rows: slice, quantization: str | None) -> Any:
    """A packed weight from some rows of a matrix ``[rows, columns]``.

    Block formats keep their codes. Floats keep their type, or become `quantization` (int8, int4).
    """
    module = native()
    assert module is not None
    count, columns = rows.stop - rows.start, int(entry.shape[-1])
    if entry.qtype in BLOCK_TYPES:
        qtype = BLOCK_TYPES[entry.qtype]
        blocks = entry.raw()[rows].contiguous()
        weight = module.Weight(module.layout_for(qtype), count, columns)
        machine.pack_blocks(weight, qtype, blocks.data_ptr(), blocks.stride(0))
        return weight
    kept = {"F16": torch.float16, "BF16": torch.bfloat16}.get(entry.qtype, torch.float32)
    values = entry.load(kept)[rows].contiguous()
    return pack_values(machine, values, quantization)


def pack_values(machine: Any, values: Tensor, quantization: str | None = None) -> Any:
    """A packed weight from a matrix of floats ``[rows, columns]`` in memory."""
    module = native()
    assert module is not None
    kept = LAYOUTS[_TORCH_TYPES[values.dtype]]
    weight = module.Weight(LAYOUTS.get(quantization or "", kept), *values.shape)
    machine.pack_floats(weight, kept, values.data_ptr())
    return weight


def unpack(weight: Any) -> Tensor:
    """All values of a packed weight, fp32 ``[rows, columns]``: what its codes stand for."""
    out = torch.empty(weight.rows, weight.columns)
    weight.unpack(out.data_ptr())
    return out


def linear(
    machine: Any, parts: Parts, x: Tensor, rows: int, out: Tensor | None = None, planes: int = ONE_PLANE
) -> Tensor:
    """``[T, columns] fp32 -> [T, rows]`` fp32, in the first rows of `out` if that is given.

    `planes`: activations are rounded to 8 bits (one) or 15 (two) in groups of 32, where weights are codes.
    """
    x = x.float().contiguous()
    out = torch.empty(x.shape[0], rows) if out is None else out[: x.shape[0]]
    machine.linear(parts, x.data_ptr(), x.shape[0], x.shape[1], planes, out.data_ptr(), rows)
    return out


def likeliest(machine: Any, parts: Parts, x: Tensor, scratch: Tensor, planes: int) -> Tensor:
    """The largest output of each token of `linear`: ``[T] int64``, -1 where one is not finite. Writes over scratch."""
    x = x.float().contiguous()
    places = torch.empty(x.shape[0], dtype=torch.int64)
    machine.likeliest(
        parts, x.data_ptr(), x.shape[0], x.shape[1], planes, scratch.data_ptr(), scratch.stride(0), places.data_ptr()
    )
    return places
