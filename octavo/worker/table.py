"""RequestTable: what the device knows of each request, in fixed rows that stay where they are.

Owner of the token lines, the block tables and the sampling columns. All that a row has lies in one line of one
buffer, so a plan's differences are one packed copy, one fill that wipes and one scatter, however many rows they
touch; a row that comes alone is wiped and copied to where it lies. Nothing is read back. The host keeps only what it
needs to lay out a step.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.base.errors import EngineError
from octavo.base.plan import AddedRow, NewBlocks, StepPlan
from octavo.base.specs import KVLayout
from octavo.base.wire import Sampling
from octavo.kernels.ops import WriteTokens
from octavo.kernels.ref.sample import write_tokens
from octavo.platform.base import Platform
from octavo.worker.columns import WIDTH, pack
from octavo.worker.staging import Ints, Longs, Stager, longs

# The token sampled last stands one place behind the longest context; a step in flight may draw one more.
_LOOKAHEAD = 8
LONG = 4096  # numbers in a row that have a copy of their own: a scatter sends a place of 64 bits with each
_PLAIN = Sampling(seed=0, max_tokens=1, temperature=0.0)
_ALIGN = 4  # int32 places: what a row has begins on 16 bytes


class RequestTable:
    """Rows ``0 .. max_rows - 1`` for requests, and one last row, `scratch`, that padding points at.

    tokens ``[max_rows + 1, width]`` int32; blocks ``[G, max_rows + 1, max_blocks]`` int32, one plane a KV group;
    columns ``[max_rows + 1, WIDTH]`` int32: views of `lines` ``[max_rows + 1, places]``. The scratch row has
    token 0 and block 0, and its columns ask nothing of a draw.
    """

    def __init__(
        self,
        platform: Platform,
        stager: Stager,
        layout: KVLayout,
        max_rows: int,
        max_model_len: int,
        vocab_size: int,
        write_tokens: WriteTokens = write_tokens,
    ) -> None:
        self.max_rows = max_rows
        self.scratch = max_rows
        self.vocab_size = vocab_size
        self.block_size = layout.block_size
        self.num_blocks = layout.num_blocks
        self.width = max_model_len + _LOOKAHEAD
        self.max_blocks = -(-self.width // layout.block_size)
        self.num_groups = len(layout.groups)
        rows = max_rows + 1
        self._columns_at = -(-self.width // _ALIGN) * _ALIGN
        self.blocks_at = self._columns_at + WIDTH  # in `lines`; a group's follow those of the one before
        places = -(-(self.blocks_at + self.num_groups * self.max_blocks) // _ALIGN) * _ALIGN
        self.lines = platform.zeros((rows, places), torch.int32)
        self.tokens = self.lines[:, : self.width]
        self.columns = self.lines[:, self._columns_at : self.blocks_at]
        self.columns[self.scratch].copy_(torch.from_numpy(pack(_PLAIN, 0).copy()))
        planes = self.lines[:, self.blocks_at : self.blocks_at + self.num_groups * self.max_blocks]
        self.blocks = planes.view(rows, self.num_groups, self.max_blocks).transpose(0, 1)
        self._flat = self.lines.view(-1)
        self.stride = places  # of `lines`
        # Host mirrors.
        self.num_prompt = np.zeros(rows, dtype=np.int64)
        self.spoiled = np.zeros(rows, dtype=np.bool_)  # a token id from outside the vocabulary came in
        self.any_spoiled = False
        self._stager = stager
        self._bounds = np.array([max_rows, self.num_groups, self.max_blocks, self.num_blocks], dtype=np.uint64)[:, None]
        self._steps = np.array([places, self.max_blocks, 1])  # in `lines`, of a row, a group and a place
        self._write_tokens = write_tokens

    def apply(self, plan: StepPlan) -> None:
        """Lay in the plan's differences. A row that is added is wiped first.

        Raises EngineError, with nothing changed, when the plan names rows or places that the table does not have.
        """
        if not plan.added and not plan.new_blocks:
            return
        blocks = [self._checked_blocks(added) for added in plan.added]
        if len(plan.added) == 1 and not plan.new_blocks:
            self._lay_alone(plan.added[0], blocks[0])
            return
        more = [self._more_blocks(new) for new in plan.new_blocks]
        spans = [span for added, groups in zip(plan.added, blocks) for span in self._spans(added, groups)]
        whole = [span for span in spans if span[1].size >= LONG]
        more += [(np.arange(at, at + values.size), values) for at, values in spans if values.size < LONG]
        places, values = (_joined(each) for each in zip(*(more or _NOTHING)))
        sent = [longs(places), values, longs([added.row for added in plan.added]), *(values for _, values in whole)]
        index, fresh, wiped, *runs = self._stager.send(sent)
        if plan.added:
            self.lines.index_fill_(0, wiped.view(torch.int64), 0)
        self._flat.index_copy_(0, index.view(torch.int64), fresh)
        for (at, values), run in zip(whole, runs):
            self._flat[at : at + values.size].copy_(run)

    def _lay_alone(self, added: AddedRow, blocks: Sequence[Longs]) -> None:
        """A copy for each of its runs: a scatter would have to be told where each number goes."""
        self.lines[added.row].zero_()
        self._stager.lay([(self._flat[at : at + values.size], values) for at, values in self._spans(added, blocks)])

    def write(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Put one token ``[S]`` into each row's line, 0 for one below it: rows, positions int64 ``[S]``."""
        self._write_tokens(self.lines, rows, positions, tokens)

    def read(self, rows: Tensor, positions: Tensor) -> Tensor:
        """The tokens at these places, int32 ``[n]``: rows, positions int64 ``[n]``."""
        return self._flat.index_select(0, rows * self.stride + positions)

    def _checked_blocks(self, added: AddedRow) -> list[Longs]:
        """The blocks of each group. Raises EngineError for a row that the table cannot take."""
        row = added.row
        if not 0 <= row < self.max_rows:
            raise EngineError(f"row {row} is outside the table of {self.max_rows}")
        if not 0 < len(added.tokens) <= self.width:
            raise EngineError(f"row {row} has {len(added.tokens)} tokens, the table holds {self.width}")
        if len(added.blocks) != self.num_groups:
            raise EngineError(f"row {row} has blocks for {len(added.blocks)} groups, the model has {self.num_groups}")
        groups = [np.array(blocks, dtype=np.int64) for blocks in added.blocks]
        for blocks in groups:
            if blocks.size > self.max_blocks:
                raise EngineError(f"row {row} has more than the {self.max_blocks} blocks of the table")
            if int(blocks.view(np.uint64).max(initial=0)) >= self.num_blocks:  # a negative number is a very large one
                raise EngineError(f"row {row} has a block outside the pool of {self.num_blocks}")
        return groups

    def _spans(self, added: AddedRow, groups: Sequence[Longs]) -> Iterator[tuple[int, Ints]]:
        """What goes into a row's line, and from which place of the flat buffer on."""
        line = added.row * self.stride
        self.num_prompt[added.row] = added.num_prompt
        yield line, self._sound(added)
        columns = pack(added.sampling, added.num_prompt)
        yield line + self._columns_at, np.concatenate((columns, groups[0]), dtype=np.int32, casting="unsafe")
        for group, blocks in enumerate(groups[1:], 1):
            if blocks.size:
                yield line + self.blocks_at + group * self.max_blocks, blocks.astype(np.int32)

    def _sound(self, added: AddedRow) -> Ints:
        """Its token ids. Those that no embedding has become 0 and spoil the row."""
        tokens = np.asarray(added.tokens)
        unsigned = tokens.view(f"u{tokens.itemsize}")  # a negative number is a very large one
        spoiled = int(unsigned.max()) >= self.vocab_size
        if spoiled:
            tokens = np.where(unsigned < self.vocab_size, tokens, 0)
        self.spoiled[added.row] = spoiled
        self.any_spoiled = spoiled or (self.any_spoiled and bool(self.spoiled.any()))
        return tokens.astype(np.int32)

    def checked(self, new: NewBlocks) -> Longs:
        """Its rows, groups, places and blocks ``[4, n]``. Raises EngineError for what the table does not have."""
        lists = new.rows, new.groups, new.places, new.blocks
        columns = np.array(lists, dtype=np.int64)
        outside = columns.view(np.uint64) >= self._bounds  # a negative number is a very large one
        if np.count_nonzero(outside):
            column, entry = (int(each[0]) for each in outside.nonzero())
            name = ("row", "KV group", "place", "block")[column]
            raise EngineError(f"{name} {columns[column, entry]} of a new block is not below {self._bounds[column, 0]}")
        return columns

    def _more_blocks(self, new: NewBlocks) -> tuple[Longs, Ints]:
        """Flat places, and the blocks that go there."""
        columns = self.checked(new)
        return self._steps @ columns[:3] + self.blocks_at, columns[3].astype(np.int32)


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


_NOTHING = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))]
