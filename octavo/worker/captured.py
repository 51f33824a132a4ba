"""Steps as captured device work: the host sends one buffer of numbers and starts one graph.

A step is captured for a room: so many rows and tokens. A plan takes the smallest room that holds it; what it leaves
empty is padding on the scratch row and block 0. Rooms are captured in quiet moments, or when plans have asked for one
often enough; until then, and for steps that fit no room, the ordinary launcher serves.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.base.plan import StepPlan
from octavo.base.specs import KVLayout
from octavo.kernels.ahead import AheadOps, Ints, Lines, Longs, Room, StepInput
from octavo.kernels.context import AttentionMeta, ForwardContext
from octavo.platform.base import Captured, Platform
from octavo.worker.batch import Batch
from octavo.worker.columns import NUM_PROMPT
from octavo.worker.head.generate import GenerateHead, Model
from octavo.worker.launch import EagerLauncher, Launched
from octavo.worker.rooms import fitting, rooms_for, tightest_first
from octavo.worker.staging import Stager
from octavo.worker.table import RequestTable

PATIENCE = 12  # steps that ask for a room before it is captured under load


@dataclass(slots=True)
class _Numbers:
    """One step's numbers in one int32 buffer; R rows of the room, G KV groups."""

    rows: Ints  # [R]
    query_start: Ints  # [R + 1]
    seq_lens: Ints  # [R]
    sample_index: Ints  # [R]
    sample_rows: Ints  # [R]
    sample_positions: Ints  # [R]
    plans: list[Ints]  # G


@dataclass(slots=True)
class _Step:
    """A room with its place on the device, and the work once captured."""

    room: Room
    host: Ints  # scratch that a step's numbers are laid out in
    numbers: _Numbers  # views of it
    device: Tensor  # [places] int32
    input: StepInput
    groups: list[AttentionMeta]
    sample_index: Tensor
    sample_rows: Tensor
    sample_positions: Tensor
    body: Captured[tuple[Tensor, Tensor]]  # hidden [T, E], chosen [R, E]
    tail: Captured[Tensor]  # tokens [R]


class CapturedLauncher:
    """Launches captured steps where it can, and hands the others to an `EagerLauncher`."""

    def __init__(
        self,
        platform: Platform,
        ahead: AheadOps,
        table: RequestTable,
        stager: Stager,
        model: Model,
        head: GenerateHead,
        layout: KVLayout,
        kv: list[Tensor],
        layer_group: list[int],
        max_tokens: int,
        eager: EagerLauncher,
    ) -> None:
        self._platform = platform
        self._ahead = ahead
        self._table = table
        self._stager = stager
        self._model = model
        self._head = head
        self._windows = [group.spec.window for group in layout.groups]
        self._kv = kv
        self._layer_group = layer_group
        self._eager = eager
        self._rooms = rooms_for(table.max_rows, max_tokens)
        self._by_size = tightest_first(self._rooms)
        self._steps: dict[Room, _Step] = {}
        self._asked: Counter[Room] = Counter()
        self._lines = Lines(table.tokens, table.blocks, table.columns[:, NUM_PROMPT])
        rows = max(room.rows for room in self._rooms)
        tokens = max(room.tokens for room in self._rooms)
        device = platform.device
        longs = [torch.zeros(tokens, dtype=torch.int64, device=device) for _ in range(3)]
        slots = torch.zeros(table.num_groups, tokens, dtype=torch.int64, device=device)
        blocks = torch.zeros(table.num_groups, rows, table.max_blocks, dtype=torch.int32, device=device)
        self._input = StepInput(longs[0], longs[1], longs[2], slots, blocks)

    def launch(self, plan: StepPlan, *, whole: bool) -> Launched:
        step = None if whole or not plan.sample else self._step_for(plan)
        if step is None:
            return self._eager.launch(plan, whole=whole)
        return self._replay(step, plan)

    @torch.inference_mode()
    def prepare(self) -> bool:
        """Capture the next room, in order of use."""
        missing = [room for room in self._rooms if room not in self._steps]
        if not missing:
            return False
        self._steps[missing[0]] = self._capture(missing[0])
        return len(missing) > 1

    def _step_for(self, plan: StepPlan) -> _Step | None:
        room = fitting(plan, self._by_size, self._steps)
        if room is None:
            return None
        step = self._steps.get(room)
        if step is None:
            self._asked[room] += 1
            if self._asked[room] >= PATIENCE:
                step = self._steps[room] = self._capture(room)
        return step

    def _replay(self, step: _Step, plan: StepPlan) -> Launched:
        rows, counts, starts, sample = (
            np.asarray(each, dtype=np.int64) for each in (plan.rows, plan.num_tokens, plan.starts, plan.sample)
        )
        seq_lens = starts + counts
        query_start = np.zeros(rows.size + 1, dtype=np.int64)
        np.cumsum(counts, out=query_start[1:])
        self._lay_out(step, rows, counts, query_start, seq_lens, sample)
        self._stager.fill(step.device, step.host)
        hidden, chosen = step.body.replay()
        sampled = sample.size
        batch = Batch(
            input_ids=step.input.input_ids,
            positions=step.input.positions,
            prompt_lens=step.input.prompt_lens,
            groups=step.groups,
            sample_index=step.sample_index[:sampled],
            sample_rows=step.sample_rows[:sampled],
            sample_positions=step.sample_positions[:sampled],
            rows=rows,
            query_start=query_start,
            starts=starts,
            host_sample_rows=rows[sample],
            host_sample_positions=seq_lens[sample],
        )
        return Launched(plan, batch, hidden, chosen[:sampled], lambda: step.tail.replay()[:sampled])

    def _lay_out(
        self, step: _Step, rows: Longs, counts: Longs, query_start: Longs, seq_lens: Longs, sample: Longs
    ) -> None:
        """The numbers of a step, and padding behind them, into the step's host buffer."""
        numbers, used, sampled, scratch = step.numbers, rows.size, sample.size, self._table.scratch
        pad = step.room.rows - used
        numbers.rows[:used] = rows
        numbers.rows[used:] = scratch
        numbers.query_start[: used + 1] = query_start
        numbers.seq_lens[:used] = seq_lens
        if step.room.mixed:  # rows without tokens
            numbers.query_start[used + 1 :] = query_start[used]
            numbers.seq_lens[used:] = 0
        else:  # rows of one token each, on the scratch row
            numbers.query_start[used + 1 :] = np.arange(used + 1, step.room.rows + 1)
            numbers.seq_lens[used:] = 1
            counts = np.append(counts, np.ones(pad, dtype=np.int64))
            seq_lens = np.append(seq_lens, np.ones(pad, dtype=np.int64))
        numbers.sample_index[:sampled] = query_start[sample + 1] - 1
        numbers.sample_index[sampled:] = 0
        numbers.sample_rows[:sampled] = rows[sample]
        numbers.sample_rows[sampled:] = scratch
        numbers.sample_positions[:sampled] = seq_lens[sample]
        numbers.sample_positions[sampled:] = 1
        for plan, window in zip(numbers.plans, self._windows):
            self._ahead.plan(plan, step.room, counts, seq_lens, window)

    def _capture(self, room: Room) -> _Step:
        """Prepare a room on the scratch row, then capture its body and its tail."""
        sizes = [room.rows, room.rows + 1, *[room.rows] * 4, *[self._ahead.places(room)] * len(self._windows)]
        host, views = _carve(sizes)
        device = torch.zeros(host.size, dtype=torch.int32, device=self._platform.device)
        on_device = _views(device, sizes)
        numbers = _Numbers(views[0], views[1], views[2], views[3], views[4], views[5], views[6:])
        into = StepInput(
            self._input.input_ids[: room.tokens],
            self._input.positions[: room.tokens],
            self._input.prompt_lens[: room.tokens],
            self._input.slots[:, : room.tokens],
            self._input.block_table[:, : room.rows],
        )
        groups = [
            AttentionMeta(
                block_table=into.block_table[group],
                slots=into.slots[group],
                query_start=on_device[1],
                seq_lens=on_device[2],
                positions=into.positions,
                block_size=self._table.block_size,
                max_query_len=room.tokens if room.mixed else 1,
                max_seq_len=self._table.width,
                num_rows=room.rows,
                query_lens=[],
                seq_lens_host=[],
            )
            for group in range(self._table.num_groups)
        ]
        for meta, window, plan in zip(groups, self._windows, on_device[6:]):
            self._ahead.attach(meta, room, window, plan)
        context = ForwardContext(groups, self._layer_group, self._kv, into.prompt_lens)
        places = [torch.zeros(room.rows, dtype=torch.int64, device=device.device) for _ in range(3)]
        latest: list[Tensor] = []  # the body's chosen states, for the tail

        def body() -> tuple[Tensor, Tensor]:
            self._ahead.stage(self._lines, into, on_device[0], on_device[1], on_device[2], self._table.block_size)
            for place, sent in zip(places, on_device[3:6]):
                place.copy_(sent)
            hidden = self._model(into.input_ids, into.positions, context)
            latest[:] = [hidden.index_select(0, places[0]) if room.mixed else hidden]
            return hidden, latest[0]

        def tail() -> Tensor:
            tokens = self._head.likeliest(latest[0])
            self._table.write(places[1], places[2], tokens)
            return tokens

        empty = np.zeros(0, dtype=np.int64)
        step = _Step(room, host, numbers, device, into, groups, places[0], places[1], places[2], _NOT_YET, _NOT_YET)
        self._lay_out(step, empty, empty, np.zeros(1, dtype=np.int64), empty, empty)
        self._stager.fill(device, host)
        step.body = self._platform.capture(body)
        step.body.replay()
        step.tail = self._platform.capture(tail)
        return step


class _NotYet:
    def replay(self) -> "object":
        raise AssertionError("a step is launched only once it is captured")


_NOT_YET: Captured = _NotYet()  # type: ignore[type-arg]


def _carve(sizes: Sequence[int]) -> tuple[Ints, list[Ints]]:
    """A zeroed buffer and its consecutive views, each starting on 16 bytes."""
    host = np.zeros(sum(map(_aligned, sizes)), dtype=np.int32)
    views, at = [], 0
    for size in sizes:
        views.append(host[at : at + size])
        at += _aligned(size)
    return host, views


def _views(device: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    views, at = [], 0
    for size in sizes:
        views.append(device[at : at + size])
        at += _aligned(size)
    return views


def _aligned(size: int) -> int:
    return -(-size // 4) * 4
