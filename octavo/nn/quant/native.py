"""Weights packed for the CPU kernels: GGUF blocks stay quantized, floats stay as stored or become int8 or int4."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from octavo.kernels.cpu.pack import BLOCK_TYPES, FLOAT_TYPES, TWO_PLANES, Parts, linear, pack_rows
from octavo.kernels.cpu.packed_file import PackedFile
from octavo.kernels.entry import Entry
from octavo.kernels.ops import Ops
from octavo.nn.quant.base import Empty, QuantMethod


@dataclass(slots=True)
class Packed:
    """A linear layer's weight: packed matrices and the first output of each."""

    out_features: int
    pieces: list[tuple[Any, int]] = field(default_factory=list)

    def parts(self, bias: Tensor | None) -> Parts:
        """In the kernels' form; `bias` is fp32 and must outlive it."""
        start = 0 if bias is None else bias.data_ptr()
        return [(weight, row, start + 4 * row if start else 0) for weight, row in self.pieces]


@dataclass(slots=True)
class Table:
    """The token table as stored, read row by row from the mapped file, and packed too if it is the output matrix."""

    rows: Tensor  # [vocab, row bytes] uint8
    qtype: int
    hidden_size: int
    head: Packed | None


class Native(QuantMethod):
    """QuantMethod over the CPU kernels. Activations are fp32; weights are no parameters of the module."""

    def __init__(self, machine: Any, quantization: str | None = None, kept: PackedFile | None = None) -> None:
        """`kept`: where packed weights were kept by an earlier start, or will be by this one."""
        self.machine = machine
        self.quantization = quantization
        self.kept = kept
        self.exact = True  # whether all weights so far are kept in fp32
        self.block_types: Counter[str] = Counter()  # values in each quantized form of the file

    def create(self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype, empty: Empty) -> None:
        del in_features, dtype, empty
        layer.packed = Packed(out_features)  # type: ignore[assignment]

    def load(self, layer: nn.Module, rows: slice, entry: Entry) -> None:
        """One piece for each shard that the rows cover: a fused tensor comes apart."""
        for start, stop in _shards(layer, rows):
            piece = self._pack(entry, slice(start - rows.start, stop - rows.start))
            packed(layer).pieces.append((piece, start))
        self.exact &= entry.qtype == "F32" and self.quantization is None
        if entry.qtype in BLOCK_TYPES:
            self.block_types[entry.qtype] += prod(entry.shape)

    def _pack(self, entry: Entry, rows: slice) -> Any:
        tag = f"{entry.qtype} {tuple(entry.shape)} {rows.start}:{rows.stop}"
        weight = None if self.kept is None else self.kept.take(tag)
        if weight is None:
            weight = pack_rows(self.machine, entry, rows, self.quantization)
            _forget(entry)
            if self.kept is not None:
                self.kept.add(tag, weight)
        return weight

    def loaded(self) -> None:
        """All weights are there."""
        if self.kept is not None:
            self.kept.keep()

    def apply(self, ops: Ops, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ARG002
        weight = packed(layer)
        return linear(self.machine, weight.parts(bias), x, weight.out_features, planes=TWO_PLANES)

    def create_table(
        self, layer: nn.Module, vocab_size: int, hidden_size: int, dtype: torch.dtype, empty: Empty
    ) -> None:
        del vocab_size, hidden_size, dtype, empty
        layer.table = None  # type: ignore[assignment]

    def load_table(self, layer: nn.Module, entry: Entry) -> None:
        vocab_size, hidden_size = (int(size) for size in entry.shape)
        types = BLOCK_TYPES | FLOAT_TYPES
        if entry.qtype in types:
            rows, qtype = entry.raw(), types[entry.qtype]
        else:
            rows, qtype = entry.load(torch.float32).view(torch.uint8), FLOAT_TYPES["F32"]
            _forget(entry)
        head = None
        if layer.tied:
            weight = self._pack(entry, slice(0, vocab_size))
            head = Packed(vocab_size, [(weight, 0)])
        layer.table = Table(rows, qtype, hidden_size, head)  # type: ignore[assignment]
        self.exact &= entry.qtype == "F32"

    def drop(self, layer: nn.Module) -> int:
        """The packed memory goes with its last reference: no decoder over it may be left."""
        weight, table = getattr(layer, "packed", None), getattr(layer, "table", None)
        if isinstance(table, Table):
            layer.table = None  # type: ignore[assignment]
            weight = table.head
        if not isinstance(weight, Packed):
            return 0
        given = sum(int(piece.nbytes) for piece, _ in weight.pieces)
        weight.pieces.clear()
        return given

    def look_up(self, ops: Ops, layer: nn.Module, ids: Tensor) -> Tensor:  # noqa: ARG002 - the base class's word
        out = torch.empty(ids.shape[0], table_of(layer).hidden_size)
        self.look_up_into(layer, ids, 1.0, out)
        return out

    def look_up_into(self, layer: nn.Module, ids: Tensor, multiplier: float, out: Tensor) -> None:
        """Rows of the table times `multiplier` into the first rows of out ``[>= T, E]`` fp32.

        Raises IndexError for an id outside the table.
        """
        table = table_of(layer)
        ids = ids.contiguous()
        stored = table.rows
        self.machine.lookup(
            table.qtype,
            stored.data_ptr(),
            stored.stride(0),
            table.hidden_size,
            stored.shape[0],
            ids.data_ptr(),
            ids.shape[0],
            multiplier,
            out.data_ptr(),
        )

    def apply_table(self, ops: Ops, layer: nn.Module, x: Tensor) -> Tensor:  # noqa: ARG002
        head = table_of(layer).head
        assert head is not None
        return linear(self.machine, head.parts(None), x, head.out_features, planes=TWO_PLANES)


def packed(layer: nn.Module) -> Packed:
    """A linear layer's packed weight."""
    weight = layer.packed
    assert isinstance(weight, Packed)
    return weight


def table_of(layer: nn.Module) -> Table:
    """The embedding's table, which must be loaded."""
    table = layer.table
    assert isinstance(table, Table)
    return table


def _shards(layer: nn.Module, rows: slice) -> list[tuple[int, int]]:
    """First and last row of each shard within `rows`."""
    heights: tuple[int, ...] = layer.shards  # type: ignore[assignment]
    ends = list(accumulate(heights))
    spans = [(end - height, end) for height, end in zip(heights, ends)]
    return [(start, stop) for start, stop in spans if start >= rows.start and stop <= rows.stop]


def _forget(entry: Entry) -> None:
    """The file's own pages need not stay in memory beside the packed weight."""
    forget = getattr(entry, "forget", None)
    if forget is not None:
        forget()
