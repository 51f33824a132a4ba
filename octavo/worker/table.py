"""RequestTable: what the device knows of each request, in fixed rows that stay where they are.

Owner of the token lines, the block tables and the sampling columns. A plan's differences are laid in by a few
scatter writes out of one packed copy; nothing is read back. The host keeps only what it needs to lay out a step.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.base.errors import EngineError
from octavo.base.plan import AddedRow, NewBlocks, StepPlan
from octavo.base.specs import KVLayout
from octavo.platform.base import Platform
from octavo.worker.columns import WIDTH, pack
from octavo.worker.staging import Ints, Stager, ints

# The token sampled last stands one place behind the longest context; a step in flight may draw one more.
_LOOKAHEAD = 8
LONG = 2048  # tokens from which a row's line is copied as one piece, rather than by places


class RequestTable:
    """Rows ``0 .. max_rows - 1`` for requests, and one last row, `scratch`, that padding points at.

    tokens ``[max_rows + 1, width]`` int32; blocks ``[G, max_rows + 1, max_blocks]`` int32, one plane a KV group;
    columns ``[max_rows + 1, WIDTH]`` int32. The scratch row is all zeros: token 0, block 0.
    """

    def __init__(
        self,
        platform: Platform,
        stager: Stager,
        layout: KVLayout,
        max_rows: int,
        max_model_len: int,
        vocab_size: int,
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
        self.tokens = platform.zeros((rows, self.width), torch.int32)
        self.blocks = platform.zeros((self.num_groups, rows, self.max_blocks), torch.int32)
        self.columns = platform.zeros((rows, WIDTH), torch.int32)
        # Host mirrors.
        self.num_prompt = np.zeros(rows, dtype=np.int64)
        self.spoiled = np.zeros(rows, dtype=np.bool_)  # a token id from outside the vocabulary came in
        self._stager = stager

    def apply(self, plan: StepPlan) -> None:
        """Lay in the plan's differences. A row that is added is wiped first.

        Raises EngineError, with nothing changed, when the plan names rows or places that the table does not have.
        """
        if not plan.added and not plan.new_blocks:
            return
        self._check(plan)
        fresh, lines = self._added(plan.added)
        values = {each.row: self._token_values(each) for each in plan.added}
        long = {row: tokens for row, tokens in values.items() if tokens.size >= LONG}
        token_index, token_values = self._token_writes({row: values[row] for row in values if row not in long})
        block_index, block_values = self._block_writes(plan.added, plan.new_blocks)
        staged = self._stager.send(
            [fresh, lines, *_split(token_index), token_values, *_split(block_index), block_values, *long.values()]
        )
        if plan.added:
            rows = staged[0].long()
            self.tokens.index_fill_(0, rows, 0)
            self.blocks.index_fill_(1, rows, 0)
            self.columns.index_copy_(0, rows, staged[1].view(-1, WIDTH))
            if token_values.size:
                self.tokens.view(-1).index_copy_(0, _join(staged[2], staged[3]), staged[4])
            for row, line in zip(long, staged[8:]):
                self.tokens[row, : line.shape[0]] = line
        if block_values.size:
            self.blocks.view(-1).index_copy_(0, _join(staged[5], staged[6]), staged[7])

    def write(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Put one token ``[S]`` into each row's line: rows, positions int64 ``[S]``, tokens of any integer type."""
        self.tokens.view(-1).index_copy_(0, rows * self.width + positions, tokens.to(torch.int32))

    def _check(self, plan: StepPlan) -> None:
        for added in plan.added:
            if not 0 <= added.row < self.max_rows:
                raise EngineError(f"row {added.row} is outside the table of {self.max_rows}")
            if not 0 < len(added.tokens) <= self.width:
                raise EngineError(f"row {added.row} has {len(added.tokens)} tokens, the table holds {self.width}")
            self._check_blocks(added.row, [0] * self.num_groups, added.blocks)
        for new in plan.new_blocks:
            if not 0 <= new.row < self.max_rows:
                raise EngineError(f"row {new.row} is outside the table of {self.max_rows}")
            self._check_blocks(new.row, new.first, new.blocks)

    def _check_blocks(self, row: int, first: Sequence[int], blocks: Sequence[Sequence[int]]) -> None:
        if len(blocks) != self.num_groups or len(first) != self.num_groups:
            raise EngineError(f"row {row} has blocks for {len(blocks)} groups, the model has {self.num_groups}")
        for start, group in zip(first, blocks):
            if start < 0 or start + len(group) > self.max_blocks:
                raise EngineError(f"row {row} has more than the {self.max_blocks} blocks of the table")
            if group and not 0 <= min(group) <= max(group) < self.num_blocks:
                raise EngineError(f"row {row} has a block outside the pool of {self.num_blocks}")

    def _added(self, added: Sequence[AddedRow]) -> tuple[Ints, Ints]:
        """Row numbers ``[A]`` and column lines ``[A, WIDTH]``."""
        rows = ints([each.row for each in added])
        self.num_prompt[rows] = [each.num_prompt for each in added]
        lines = [pack(each.sampling, each.num_prompt) for each in added]
        return rows, np.stack(lines) if lines else np.zeros((0, WIDTH), dtype=np.int32)

    def _token_values(self, added: AddedRow) -> Ints:
        """Its tokens; ids that no embedding has become 0 and spoil the row."""
        tokens = np.asarray(added.tokens)
        illegal = (tokens < 0) | (tokens >= self.vocab_size)
        self.spoiled[added.row] = spoiled = bool(illegal.any())
        return np.where(illegal, 0, tokens).astype(np.int32) if spoiled else tokens.astype(np.int32)

    def _token_writes(self, values: Mapping[int, Ints]) -> tuple[npt.NDArray[np.int64], Ints]:
        """Flat places in `tokens`, and what goes there, for the tokens by row."""
        places = [row * self.width + np.arange(tokens.size) for row, tokens in values.items()]
        return _concat(places), np.concatenate(list(values.values())) if values else ints([])

    def _block_writes(self, added: Sequence[AddedRow], new: Sequence[NewBlocks]) -> tuple[npt.NDArray[np.int64], Ints]:
        """Flat places in `blocks`, and what goes there."""
        rows, places, values = self.max_rows + 1, [], []
        spans = [(each.row, [0] * self.num_groups, each.blocks) for each in added]
        spans += [(each.row, each.first, each.blocks) for each in new]
        for row, first, blocks in spans:
            for group, (start, ids) in enumerate(zip(first, blocks)):
                if ids:
                    places.append((group * rows + row) * self.max_blocks + start + np.arange(len(ids)))
                    values.extend(ids)
        return _concat(places), ints(values)


def _concat(arrays: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)


# A large table has more places than 31 bits count: flat indexes travel as two int32 halves.
def _split(index: npt.NDArray[np.int64]) -> tuple[Ints, Ints]:
    return (index >> 31).astype(np.int32), (index & 0x7FFFFFFF).astype(np.int32)


def _join(high: Tensor, low: Tensor) -> Tensor:
    return (high.long() << 31) + low.long()
