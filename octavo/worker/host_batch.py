"""The batch where the device is the host: the same buffers, filled by numpy in place.

A step of one token is a handful of numbers; as two dozen tensor operations they cost a noticeable part of a small
model's step on a CPU.
"""

import numpy as np
import torch

from octavo.base.plan import StepPlan
from octavo.kernels.context import AttentionMeta
from octavo.worker.batch import Batch, BatchBuilder, Longs
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

    def build(self, plan: StepPlan, pad_rows: int = 0) -> Batch:
        shape = self._checked(plan, pad_rows)
        rows, counts, seq_lens = shape.rows, shape.counts, shape.starts + shape.counts
        query_start = np.zeros(rows.size + 1, dtype=np.int64)
        np.cumsum(counts, out=query_start[1:])
        total = int(query_start[-1])
        token_rows, positions = rows, shape.starts
        if total != rows.size:
            token_rows = np.repeat(rows, counts)
            positions = np.arange(total) - np.repeat(query_start[:-1] - shape.starts, counts)
        self._host_ids[:total] = self._tokens[token_rows, positions]
        self._host_positions[:total] = positions
        self._host_lens[:total] = self._table.num_prompt[token_rows]
        sampled = rows[shape.sample]
        sample_positions = seq_lens[shape.sample]
        return Batch(
            input_ids=self._input_ids[:total],
            positions=self._positions[:total],
            prompt_lens=self._prompt_lens[:total],
            groups=self._groups(token_rows, positions, rows, query_start, counts, seq_lens),
            sample_index=torch.from_numpy(query_start[shape.sample + 1] - 1),
            sample_rows=torch.from_numpy(sampled),
            sample_positions=torch.from_numpy(sample_positions),
            rows=rows,
            query_start=query_start,
            starts=shape.starts,
            host_sample_rows=sampled,
            host_sample_positions=sample_positions,
        )

    def _groups(
        self, token_rows: Longs, positions: Longs, rows: Longs, query_start: Longs, counts: Longs, seq_lens: Longs
    ) -> list[AttentionMeta]:
        """One AttentionMeta a KV group, as views of the buffers."""
        size, total, count = self._table.block_size, token_rows.size, rows.size
        query_lens, seq_lens_host = counts.tolist(), seq_lens.tolist()
        longest = max(seq_lens_host, default=1)
        width = -(-longest // size)
        place, offset = np.divmod(positions, size)
        self._host_slots[:, :total] = self._blocks[:, token_rows, place] * np.int64(size) + offset
        self._host_table[:, :count, :width] = self._blocks[:, rows, :width]
        self._host_start[: count + 1] = query_start
        self._host_seq_lens[:count] = seq_lens
        return [
            AttentionMeta(
                block_table=self._block_table[group, :count, :width],
                slots=self._slots[group, :total],
                query_start=self._query_start[: count + 1],
                seq_lens=self._seq_lens[:count],
                positions=self._positions[:total],
                block_size=size,
                max_query_len=max(query_lens, default=1),
                max_seq_len=longest,
                num_rows=count,
                query_lens=query_lens,
                seq_lens_host=seq_lens_host,
            )
            for group in range(self._table.num_groups)
        ]
