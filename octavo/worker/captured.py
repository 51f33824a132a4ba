"""Steps as captured device work: the host sends one buffer of numbers and starts one graph.

A step is captured for a room: so many rows and tokens. A plan takes the smallest room that holds it; what it leaves
empty is padding on the scratch row and block 0. Rooms are captured in quiet moments, or when plans have asked for one
often enough; until then, and for steps that fit no room, the ordinary launcher serves.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo.base.errors import EngineError
from octavo.base.plan import StepPlan
from octavo.kernels.ahead import AheadOps, Lines, Room, Sent, StepInput
from octavo.kernels.context import AttentionMeta, ForwardContext
from octavo.kernels.ops import Ops
from octavo.platform.base import Captured, Cut, Platform
from octavo.worker.batch import Batch
from octavo.worker.columns import NUM_PROMPT
from octavo.worker.drawing import Drawing, DrawingBoard, first_of
from octavo.worker.launch import EagerLauncher, Ground, Launched
from octavo.worker.lineup import NOBODY, Lineup
from octavo.worker.numbers import Numbers, cut
from octavo.worker.rooms import fitting, holding, rooms_for, tightest_first
from octavo.worker.sample.step import RiderRule
from octavo.worker.staging import Longs, Stager

PATIENCE = 12  # steps that ask for a room before it is captured under load
GRUDGE = 1000  # more of them before that is tried again where it failed: each try gives all caches back


@dataclass(slots=True)
class _Step:
    """A room with its place on the device, and the work once captured."""

    numbers: Numbers
    device: Tensor  # [places] int32
    input: StepInput
    groups: list[AttentionMeta]
    body: Captured[Tensor]  # hidden states of what is sampled [R, E]
    tail: Captured[Tensor]  # tokens [R]
    drawing: Drawing | None = None  # where the room is small enough
    chosen: list[Tensor] = field(default_factory=list)  # what the body gave last
    sampled: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)  # 3 of [count]

    def places_of(self, count: int) -> tuple[Tensor, ...]:
        """Index, row and position of the first `count` that are sampled; they stay where they are."""
        found = self.sampled.get(count)
        if found is None:
            found = self.sampled[count] = self.input.sampled[:, :count].unbind()
        return found


@dataclass(frozen=True, slots=True)
class _Sent:
    """A plan whose numbers are on their way to its step."""

    step: _Step
    plan: StepPlan
    starts: Longs  # [R]
    positions: Longs  # [S], of the sampled tokens


class CapturedLauncher:
    """Launches captured steps where it can, and hands the others to an `EagerLauncher`."""

    def __init__(
        self,
        platform: Platform,
        stager: Stager,
        ahead: AheadOps,
        ops: Ops,
        ground: Ground,
        eager: EagerLauncher,
        max_tokens: int,
        rules: Mapping[str, RiderRule] = {},
    ) -> None:
        """`rules`: those whose work on drawn rooms is captured, by the riders that they read."""
        table = ground.table
        self._platform = platform
        self._stager = stager
        self._ahead = ahead
        self._table = table
        self._model = ground.model
        self._kv = ground.kv
        self._layer_group = ground.layout.layer_groups
        self._windows = [group.spec.window for group in ground.layout.groups]
        self._eager = eager
        self._rooms = rooms_for(table.max_rows, max_tokens, fresh=ahead.fresh_rooms)
        self._by_size = {
            mixed: tightest_first([room for room in self._rooms if room.mixed == mixed]) for mixed in (False, True)
        }
        self._steps: dict[Room, _Step] = {}
        self._asked: Counter[Room] = Counter()
        self._lineup = NOBODY  # of the last plan
        self._settled: _Step | None = None  # the best one there is for it
        self._sent: _Sent | None = None  # of the plan that is expected
        self._lines = Lines(table.tokens, table.blocks, table.columns[:, NUM_PROMPT])
        rows = max(room.rows for room in self._rooms)
        tokens = max(room.tokens for room in self._rooms)
        device = platform.device
        longs = [torch.zeros(tokens, dtype=torch.int64, device=device) for _ in range(3)]
        slots = torch.zeros(table.num_groups, tokens, dtype=torch.int64, device=device)
        blocks = torch.zeros(table.num_groups, rows, table.max_blocks, dtype=torch.int32, device=device)
        sampled = torch.zeros(3, rows, dtype=torch.int64, device=device)
        self._tune = ops.tune
        self._board = DrawingBoard(platform, ops, ground, rows, rules)
        self._input = StepInput(longs[0], longs[1], longs[2], slots, blocks, sampled)

    def expect(self, plan: StepPlan) -> None:
        """Send the numbers of a plan that differs from the last in lengths and blocks alone. The device has them before
        it draws the last step's tokens, which looks at none of them."""
        self._sent = None
        if self._settled is not None and self._lineup.is_of(plan):
            with contextlib.suppress(EngineError):  # `launch` meets it again
                self._sent = self._send(self._settled, plan)

    def launch(self, plan: StepPlan, *, whole: bool) -> Launched:
        step = None if whole or not plan.sample else self._step_for(plan)
        if step is None:
            return self._eager.launch(plan, whole=whole)
        return self._replay(step, plan)

    @torch.inference_mode()
    def prepare(self) -> bool:
        """Capture the next room, in order of use; once all are there, what draws at random in one."""
        missing = [room for room in self._rooms if room not in self._steps]
        if missing:
            self._steps[missing[0]] = self._capture(missing[0])
            return True
        small = [step for step in self._steps.values() if self._board.has_room_for(step.numbers.room.rows)]
        undrawn = [step for step in small if step.drawing is None]
        if undrawn:
            self._capture_draw(undrawn[0])
        return len(undrawn) > 1

    def _step_for(self, plan: StepPlan) -> _Step | None:
        if not self._lineup.is_of(plan):
            self._lineup, self._settled = Lineup.of(plan), None
        if self._settled is not None:
            return self._settled
        able = holding(self._lineup, self._by_size[self._lineup.mixed])
        room = fitting(able, self._lineup.total, self._steps)
        if room is None:
            return None
        step = self._steps.get(room)
        if step is None:
            self._asked[room] += 1
            if self._asked[room] >= PATIENCE:
                self._asked[room] = -GRUDGE
                step = self._steps[room] = self._capture(room)
        if room is able[0]:  # no better one will come
            self._settled = step
        return step

    def _send(self, step: _Step, plan: StepPlan) -> "_Sent":
        starts = np.asarray(plan.starts, dtype=np.int64)
        seq_lens = starts + self._lineup.counts
        positions = seq_lens[self._lineup.sample]
        step.numbers.lay_out(self._lineup, seq_lens, positions)
        self._take_in(plan, step.numbers)
        self._stager.fill(step.device, step.numbers.host)
        return _Sent(step, plan, starts, positions)

    def _replay(self, step: _Step, plan: StepPlan) -> Launched:
        lineup, sent = self._lineup, self._sent
        self._sent = None
        if sent is None or sent.plan is not plan or sent.step is not step:
            sent = self._send(step, plan)
        positions = sent.positions
        chosen = step.body.replay()
        sampled = positions.size
        sample_index, sample_rows, sample_positions = step.places_of(sampled)
        batch = Batch(
            input_ids=step.input.input_ids,
            positions=step.input.positions,
            prompt_lens=step.input.prompt_lens,
            groups=step.groups,
            sample_index=sample_index,
            sample_rows=sample_rows,
            sample_positions=sample_positions,
            rows=lineup.rows,
            query_start=lineup.query_start,
            starts=sent.starts,
            host_sample_rows=lineup.sampled_rows,
            host_sample_positions=positions,
        )
        chosen = first_of(chosen, sampled)
        draws = None if step.drawing is None else step.drawing.of(sampled)
        return Launched(plan, batch, None, chosen, lambda: first_of(step.tail.replay(), sampled), draws)

    def _take_in(self, plan: StepPlan, numbers: Numbers) -> None:
        """Have the table's differences: of most steps a block for some rows, which goes with the step's own numbers."""
        alone = plan.new_blocks[0] if len(plan.new_blocks) == 1 and not plan.added else None
        if alone is None or not numbers.grow(self._lineup, *self._table.checked(alone)):
            self._table.apply(plan)

    def _capture(self, room: Room) -> _Step:
        """Prepare a room on the scratch row, then capture its body and its tail."""
        numbers = Numbers(room, self._ahead, self._windows, self._table.scratch)
        device = torch.zeros(numbers.host.size, dtype=torch.int32, device=self._platform.device)
        on_device = cut(device, numbers.sizes)
        into = StepInput(
            self._input.input_ids[: room.tokens],
            self._input.positions[: room.tokens],
            self._input.prompt_lens[: room.tokens],
            self._input.slots[:, : room.tokens],
            self._input.block_table[:, : room.rows],
            self._input.sampled[:, : room.rows],
        )
        grown = on_device[6].view(self._table.num_groups, 2, room.rows)
        sent = Sent(on_device[0], on_device[1], on_device[2], on_device[3:6], grown)
        groups = [
            AttentionMeta(
                block_table=into.block_table[group],
                slots=into.slots[group],
                query_start=on_device[1],
                seq_lens=on_device[2],
                positions=into.positions,
                block_size=self._table.block_size,
                num_rows=room.rows,
                query_lens=[],
                seq_lens_host=[],
            )
            for group in range(self._table.num_groups)
        ]
        for meta, window, plan in zip(groups, self._windows, on_device[7:]):
            self._ahead.attach(meta, room, window, plan)
        context = ForwardContext(groups, self._layer_group, self._kv, into.prompt_lens)
        cuts = _cuts(len(self._layer_group)) if room.mixed else frozenset()
        index, rows, positions = into.sampled.unbind()
        step = _Step(numbers, device, into, groups, _NOT_YET, _NOT_YET)

        def body(cut: Cut) -> Tensor:
            context.before_layer = lambda layer: cut() if layer in cuts else None
            self._ahead.stage(self._lines, into, sent, self._table.block_size)
            hidden = self._model(into.input_ids, into.positions, context)
            step.chosen[:] = [hidden.index_select(0, index) if room.mixed else hidden]
            return step.chosen[0]

        def tail(_: Cut) -> Tensor:
            tokens = self._model.likeliest(step.chosen[0])
            self._table.write(rows, positions, tokens)
            return tokens

        self._empty(step)
        step.body = self._platform.capture(body, self._tune)
        step.body.replay()
        step.tail = self._platform.capture(tail)
        return step

    def _capture_draw(self, step: _Step) -> None:
        """The draw from the states that the body gave last. It is tried out on the scratch row."""
        self._empty(step)
        step.body.replay()
        _, rows, positions = step.input.sampled.unbind()
        step.drawing = self._board.capture(lambda: step.chosen[0], rows, positions)

    def _empty(self, step: _Step) -> None:
        step.numbers.lay_out(NOBODY, NOBODY.counts, NOBODY.counts)
        self._stager.fill(step.device, step.numbers.host)


def _cuts(layers: int) -> frozenset[int]:
    """Layers before which a prompt's step is cut, each piece twice the one before: to start a whole graph takes the
    host as long as a short prompt takes the device, which is at work after the first small piece."""
    return frozenset(2**power - 2 for power in range(2, layers.bit_length() + 1) if 2**power - 2 < layers)


class _NotYet:
    def replay(self) -> "object":
        raise AssertionError("a step is launched only once it is captured")


_NOT_YET: Captured = _NotYet()  # type: ignore[type-arg]
