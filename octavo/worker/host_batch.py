"""The batch where the device is the host: the same buffers, filled by numpy in place.

A step of one token is a handful of numbers; as two dozen tensor operations they cost a noticeable part of a small
model's step on a CPU.
"""

import numpy as np
import torch

from octavo.base.plan import StepPlan
from octavo.worker.batch import Batch, BatchBuilder
from octavo.worker.staging import Stager
from octavo.worker.table import RequestTable


class HostBatchBuilder(BatchBuilder):
    """BatchBuilder over memory that numpy reads and writes."""

    def __init__(self, table: RequestTable, stager: Stager, max_tokens: int, max_rows: int) -> None:
        super().__init__(table, stager, max_tokens, max_rows)
        self._tokens, self._blocks = table.tokens.numpy(), table.blocks.numpy()
        self._host_ids, self._host_positions = self._input_ids.numpy(), self._positions.numpy()
        self._host_lens, self._host_slots = self._prompt_lens.numpy(), self._slots.numpy()
        self._host_table = self._block_table.numpy()
        self._host_start, self._host_seq_lens = self._query_start.numpy(), self._seq_lens.numpy()

    def build(self, plan: StepPlan) -> Batch:
        shape = self._checked(plan)
        token_rows, positions = shape.places()
        total, count, size, width = shape.total, shape.rows.size, self._table.block_size, self._width(shape)
        self._host_ids[:total] = self._tokens[token_rows, positions]
        self._host_positions[:total] = positions
        self._host_lens[:total] = self._table.num_prompt[token_rows]
        place, offset = np.divmod(positions, size)
        self._host_slots[:, :total] = self._blocks[:, token_rows, place] * np.int64(size) + offset
        self._host_table[:, :count, :width] = self._blocks[:, shape.rows, :width]
        self._host_start[: count + 1] = shape.query_start
        self._host_seq_lens[:count] = shape.seq_lens
        sampled = shape.sample_index, shape.rows[shape.sample], shape.seq_lens[shape.sample]
        index, rows, ends = (torch.from_numpy(each) for each in sampled)
        return self._batch(shape, (index, rows, ends), self._query_start[: count + 1], self._seq_lens[:count])
