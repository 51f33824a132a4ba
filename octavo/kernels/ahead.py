"""What a device needs for steps whose launches are fixed before their numbers are known (CUDA graphs).

A captured step has room for a number of rows and tokens. All its numbers arrive in one int32 buffer; `AheadOps`
says what attention adds to that buffer and turns the buffer into the step's inputs on the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from octavo.kernels.context import AttentionMeta

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Room:
    """What a captured step holds. `mixed`: rows may have more than one token; else rows and tokens are the same.
    `fresh`: it is one row that has nothing computed yet, and mixed."""

    rows: int
    tokens: int
    mixed: bool
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """The request table as the device holds it: R rows, of which the last is scratch, G KV groups."""

    tokens: Tensor  # [R, width] int32
    blocks: Tensor  # [G, R, max_blocks] int32
    num_prompt: Tensor  # [R] int32, perhaps strided


@dataclass(frozen=True, slots=True)
class StepInput:
    """What staging fills. T and R are the room's tokens and rows; tokens past the last row's belong to nobody."""

    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    prompt_lens: Tensor  # [T] int64
    slots: Tensor  # [G, T] int64
    block_table: Tensor  # [G, R, max_blocks] int32
    sampled: Tensor  # [3, S] int64: places in T, rows and positions of what is sampled


@dataclass(frozen=True, slots=True)
class Sent:
    """Numbers of a step as the host sends them, all int32."""

    rows: Tensor  # [R]
    query_start: Tensor  # [R + 1]
    seq_lens: Tensor  # [R]
    sampled: Sequence[Tensor]  # 3 of [S], S <= R: as in `StepInput`
    grown: Tensor  # [G, 2, R]: of each row a place in its block table, -1 for none, and the block that goes there


class AheadOps(Protocol):
    fresh_rooms: bool  # whether rooms for fresh rows are any quicker

    def places(self, room: Room) -> int:
        """int32 places that attention's plan of one KV group takes."""
        ...

    def plan(self, out: Ints, room: Room, query_lens: Longs, seq_lens: Longs, window: int | None) -> None:
        """Write the plan of a step into ``out [places]``; the lengths ``[n]`` are those of its n <= rows rows."""
        ...

    def attach(self, meta: AttentionMeta, room: Room, window: int | None, plan: Tensor) -> None:
        """Tell attention that its plan for this meta will stand in ``plan [places]`` on the device."""
        ...

    def stage(self, lines: Lines, into: StepInput, sent: Sent, block_size: int) -> None:
        """Lay in the blocks that are new, find each token's id, position and slot, and copy the rows' block tables and
        what is sampled.

        Rows that the step does not have are empty.
        """
        ...


class MakeAheadOps(Protocol):
    def __call__(self, group: int, num_kv_heads: int, head_dim: int, dtype_bytes: int, block_size: int) -> AheadOps:
        """`group`: query heads that share a KV head."""
        ...
