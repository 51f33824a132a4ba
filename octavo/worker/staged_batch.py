"""The batch where the device finds ids, positions and slots with one kernel, as a captured step does.

As tensor operations they are two dozen launches, which a prompt that comes alone waits for.
"""

import numpy as np
import torch

from octavo.base.plan import StepPlan
from octavo.kernels.ahead import AheadOps, Lines, Sent, StepInput
from octavo.worker.batch import Batch, BatchBuilder
from octavo.worker.columns import NUM_PROMPT
from octavo.worker.staging import Stager, ints
from octavo.worker.table import RequestTable


class StagedBatchBuilder(BatchBuilder):
    """BatchBuilder over operations that stage."""

    def __init__(self, table: RequestTable, stager: Stager, max_tokens: int, max_rows: int, ahead: AheadOps) -> None:
        super().__init__(table, stager, max_tokens, max_rows)
        self._ahead = ahead
        self._lines = Lines(table.tokens, table.blocks, table.columns[:, NUM_PROMPT])
        self._sampled = torch.zeros(3, max_rows, dtype=torch.int64, device=table.tokens.device)

    def build(self, plan: StepPlan) -> Batch:
        shape = self._checked(plan)
        places = shape.sample_index, shape.rows[shape.sample], shape.seq_lens[shape.sample]
        numbers = shape.rows, shape.query_start, shape.seq_lens, *places
        grown = np.full(2 * self._table.num_groups * shape.rows.size, -1, dtype=np.int32)  # the table has it all
        rows, query_start, seq_lens, *sampled, none = self._stager.send([*(ints(each) for each in numbers), grown])
        total = shape.total
        into = StepInput(
            self._input_ids[:total],
            self._positions[:total],
            self._prompt_lens[:total],
            self._slots[:, :total],
            self._block_table[:, : shape.rows.size],
            self._sampled[:, : shape.sample.size],
        )
        sent = Sent(rows, query_start, seq_lens, sampled, none.view(self._table.num_groups, 2, -1))
        self._ahead.stage(self._lines, into, sent, self._table.block_size)
        index, owners, ends = into.sampled.unbind()
        return self._batch(shape, (index, owners, ends), query_start, seq_lens)
