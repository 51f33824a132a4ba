"""Batch: this step's input, gathered on the device from the request table.

The host lays out which row and position each token is; the device finds the ids, so a token that the step before
has yet to sample is simply there when this step's kernels run. Everything lands in buffers of fixed capacity, and the
batch is views of them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.base.errors import EngineError
from octavo.base.plan import StepPlan
from octavo.kernels.context import AttentionMeta
from octavo.worker.staging import Longs, Stager, ints
from octavo.worker.table import RequestTable


@dataclass(slots=True)
class Batch:
    """T tokens of R rows, of which S are sampled. Device tensors int64 unless said otherwise."""

    input_ids: Tensor  # [T]
    positions: Tensor  # [T]
    prompt_lens: Tensor  # [T], prompt length of each token's request
    groups: list[AttentionMeta]  # one a KV group
    sample_index: Tensor  # [S], places in T of the hidden states to sample from
    sample_rows: Tensor  # [S], rows of the table
    sample_positions: Tensor  # [S], where the drawn token will stand
    # The same on the host.
    rows: Longs  # [R]
    query_start: Longs  # [R + 1]
    starts: Longs  # [R]
    host_sample_rows: Longs  # [S]
    host_sample_positions: Longs  # [S]


@dataclass(slots=True, frozen=True)
class Shape:
    """A plan as arrays, checked."""

    rows: Longs  # [R]
    counts: Longs  # [R], tokens
    starts: Longs  # [R], first positions
    sample: Longs  # [S], indexes into the rows
    query_start: Longs  # [R + 1]
    seq_lens: Longs  # [R]

    @property
    def total(self) -> int:
        return int(self.query_start[-1])

    @property
    def sample_index(self) -> Longs:
        return self.query_start[self.sample + 1] - 1

    def places(self) -> tuple[Longs, Longs]:
        """Row and position of each token, ``[T]``."""
        if self.total == self.rows.size:
            return self.rows, self.starts
        positions = np.arange(self.total) - np.repeat(self.query_start[:-1] - self.starts, self.counts)
        return np.repeat(self.rows, self.counts), positions


class BatchBuilder:
    """Builds batches of at most `max_tokens` tokens and `max_rows` rows into its own buffers."""

    def __init__(self, table: RequestTable, stager: Stager, max_tokens: int, max_rows: int) -> None:
        self._table = table
        self._stager = stager
        self._max_tokens = max_tokens
        self._max_rows = max_rows
        device = table.tokens.device

        def buffer(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        groups = table.num_groups
        self._input_ids = buffer(max_tokens)
        self._positions = buffer(max_tokens)
        self._prompt_lens = buffer(max_tokens)
        self._slots = buffer(groups, max_tokens)
        self._block_table = buffer(groups, max_rows, table.max_blocks, dtype=torch.int32)
        self._query_start = buffer(max_rows + 1, dtype=torch.int32)
        self._seq_lens = buffer(max_rows, dtype=torch.int32)
        planes = table.blocks_at + torch.arange(groups) * table.max_blocks
        self._planes = planes[:, None].to(device)

    def build(self, plan: StepPlan) -> Batch:
        """The batch of a plan.

        Raises EngineError when the plan does not fit the buffers or names rows and positions that do not exist.
        """
        shape = self._checked(plan)
        token_rows, positions = shape.places()
        sampled, ends = shape.rows[shape.sample], shape.seq_lens[shape.sample]
        arrays = [token_rows, positions, shape.rows, shape.query_start, shape.seq_lens]
        arrays += [shape.sample_index, sampled, ends, self._table.num_prompt[token_rows]]
        staged = self._stager.send([ints(array) for array in arrays])
        total, count, width = shape.total, shape.rows.size, self._width(shape)
        query_start = self._query_start[: count + 1].copy_(staged[3])
        seq_lens = self._seq_lens[:count].copy_(staged[4])
        self._prompt_lens[:total].copy_(staged[8])
        self._gather(staged[0].long(), self._positions[:total].copy_(staged[1]), staged[2].long(), width)
        places = staged[5].long(), staged[6].long(), staged[7].long()
        return self._batch(shape, places, query_start, seq_lens)

    def _batch(self, shape: Shape, places: tuple[Tensor, Tensor, Tensor], starts: Tensor, seq_lens: Tensor) -> Batch:
        """The buffers as far as they are filled. places ``[S]`` int64: index, row and position of what is sampled;
        starts ``[R + 1]`` and seq_lens ``[R]`` int32, on the device."""
        total = shape.total
        return Batch(
            input_ids=self._input_ids[:total],
            positions=self._positions[:total],
            prompt_lens=self._prompt_lens[:total],
            groups=self._metas(shape, starts, seq_lens),
            sample_index=places[0],
            sample_rows=places[1],
            sample_positions=places[2],
            rows=shape.rows,
            query_start=shape.query_start,
            starts=shape.starts,
            host_sample_rows=shape.rows[shape.sample],
            host_sample_positions=shape.seq_lens[shape.sample],
        )

    def _metas(self, shape: Shape, query_start: Tensor, seq_lens: Tensor) -> list[AttentionMeta]:
        """One a KV group."""
        total, count, width = shape.total, shape.rows.size, self._width(shape)
        query_lens, seq_lens_host = shape.counts.tolist(), shape.seq_lens.tolist()
        return [
            AttentionMeta(
                block_table=self._block_table[group, :count, :width],
                slots=self._slots[group, :total],
                query_start=query_start,
                seq_lens=seq_lens,
                positions=self._positions[:total],
                block_size=self._table.block_size,
                num_rows=count,
                query_lens=query_lens,
                seq_lens_host=seq_lens_host,
            )
            for group in range(self._table.num_groups)
        ]

    def _width(self, shape: Shape) -> int:
        """Blocks of the longest row."""
        return -(-int(shape.seq_lens.max(initial=1)) // self._table.block_size)

    def _gather(self, token_rows: Tensor, positions: Tensor, rows: Tensor, width: int) -> None:
        """From the table: the tokens' ids and slots ``[T]``, and `width` blocks of each row ``[R]``."""
        table, size = self._table, self._table.block_size
        total = token_rows.numel()
        self._input_ids[:total].copy_(table.read(token_rows, positions))
        place = self._planes + (token_rows * table.stride + positions // size)
        block = table.lines.view(-1).index_select(0, place.view(-1)).view(table.num_groups, total)
        self._slots[:, :total].copy_(block.long() * size + positions % size)
        self._block_table[:, : rows.numel(), :width].copy_(table.blocks[:, :, :width].index_select(1, rows))

    def _checked(self, plan: StepPlan) -> Shape:
        rows, counts, starts = (np.asarray(each, dtype=np.int64) for each in (plan.rows, plan.num_tokens, plan.starts))
        sample = np.asarray(plan.sample, dtype=np.int64)
        if not rows.size == counts.size == starts.size:
            raise EngineError(f"step {plan.step}: rows, num_tokens and starts differ in length")
        if rows.size > self._max_rows or int(counts.sum()) > self._max_tokens:
            raise EngineError(
                f"step {plan.step}: {rows.size} rows of {int(counts.sum())} tokens do not fit "
                f"the batch of {self._max_rows} rows and {self._max_tokens} tokens"
            )
        inside = (rows >= 0) & (rows < self._table.max_rows) & (counts > 0) & (starts >= 0)
        # The sampled token stands one place behind.
        inside &= starts + counts < self._table.width
        if not inside.all() or ((sample < 0) | (sample >= rows.size)).any():
            raise EngineError(f"step {plan.step}: a row, a position or a sampled entry is out of bounds")
        query_start = np.zeros(rows.size + 1, dtype=np.int64)
        np.cumsum(counts, out=query_start[1:])
        return Shape(rows, counts, starts, sample, query_start, starts + counts)
