"""Numbers: what a captured step is sent, laid out in one int32 buffer.

Who is in the step changes now and then, how long each row has become with every step: the two are written apart.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from torch import Tensor

from octavo.kernels.ahead import AheadOps, Ints, Longs, Room
from octavo.worker.lineup import Lineup

Places = TypeVar("Places", Ints, Tensor)


class Numbers:
    """A room's numbers on the host, and the padding behind those of the step; R rows of the room, G KV groups."""

    def __init__(self, room: Room, ahead: AheadOps, windows: Sequence[int | None], scratch: int) -> None:
        rows = room.rows
        self.room = room
        grown = 2 * len(windows) * rows
        self.sizes = [rows, rows + 1, rows, rows, rows, rows, grown, *[ahead.places(room)] * len(windows)]
        self.host: Ints = np.zeros(sum(map(_aligned, self.sizes)), dtype=np.int32)
        views: list[Ints] = cut(self.host, self.sizes)
        self.rows, self.query_start, self.seq_lens = views[:3]  # [R], [R + 1], [R]
        self.sample_index, self.sample_rows, self.sample_positions = views[3:6]  # [R] each
        self.grown = views[6].reshape(len(windows), 2, rows)
        self.grown[:] = -1
        self._has_grown = False
        self._plans = list(zip(views[7:], windows))  # G
        self._ahead = ahead
        self._scratch = scratch
        self._lineup: Lineup | None = None

    def lay_out(self, lineup: Lineup, seq_lens: Longs, positions: Longs) -> None:
        """The numbers of a step: seq_lens ``[r]`` of its rows after it, positions ``[s]`` of the sampled tokens."""
        if lineup is not self._lineup:
            self._seat(lineup)
            self._lineup = lineup
        used = seq_lens.size
        self.seq_lens[:used] = seq_lens
        self.sample_positions[: positions.size] = positions
        for plan, window in self._plans:
            self._ahead.plan(plan, self.room, lineup.counts, seq_lens, window)
        if self._has_grown:
            self.grown[:, 0] = -1
            self._has_grown = False

    def grow(self, lineup: Lineup, rows: Longs, groups: Longs, places: Longs, blocks: Longs) -> bool:
        """New blocks ``[n]`` of the step laid out last. False: there is no room, some row has two or is not in it."""
        if rows.max(initial=-1) >= lineup.seats.size:
            return False
        seats = lineup.seats[rows]
        self.grown[groups, 0, seats] = places
        self.grown[groups, 1, seats] = blocks
        fits = bool((seats >= 0).all()) and np.count_nonzero(self.grown[:, 0] >= 0) == rows.size
        if not fits:
            self.grown[:, 0] = -1
        self._has_grown = fits
        return fits

    def _seat(self, lineup: Lineup) -> None:
        """What stays while the same rows go on, and the padding."""
        used, sampled = lineup.rows.size, lineup.sample.size
        self.rows[:used] = lineup.rows
        self.rows[used:] = self._scratch
        self.query_start[: used + 1] = lineup.query_start
        if self.room.mixed:  # rows without tokens
            self.query_start[used + 1 :] = lineup.total
            self.seq_lens[used:] = 0
        else:  # rows of one token each, on the scratch row; attention's plan gives them nothing to do
            self.query_start[used + 1 :] = np.arange(used + 1, self.room.rows + 1)
            self.seq_lens[used:] = 1
        self.sample_index[:sampled] = lineup.query_start[lineup.sample + 1] - 1
        self.sample_index[sampled:] = 0
        self.sample_rows[:sampled] = lineup.sampled_rows
        self.sample_rows[sampled:] = self._scratch
        self.sample_positions[sampled:] = 1


def cut(places: Places, sizes: Sequence[int]) -> list[Places]:
    """Consecutive views of these sizes, each starting on 16 bytes."""
    views, at = [], 0
    for size in sizes:
        views.append(places[at : at + size])
        at += _aligned(size)
    return views


def _aligned(size: int) -> int:
    return -(-size // 4) * 4
