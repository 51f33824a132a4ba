"""Request table and batch against a naive host model, over random plans; the staging ring; the law of the runner."""

from pathlib import Path

import numpy as np
import pytest
import torch
from worker_toy import greedy, layout

import octavo.worker.runner as runner_module
from octavo.base.errors import EngineError
from octavo.base.plan import AddedRow, NewBlocks, StepPlan
from octavo.platform.cpu import CpuPlatform
from octavo.worker.batch import BatchBuilder
from octavo.worker.columns import Columns
from octavo.worker.host_batch import HostBatchBuilder
from octavo.worker.staged_batch import StagedBatchBuilder
from octavo.worker.staging import Stager, float_bits, ints
from octavo.worker.table import RequestTable

ROWS, LENGTH, BLOCK, BLOCKS, VOCAB = 7, 40, 4, 500, 1000


class Naive:
    """Rows as Python lists."""

    def __init__(self, groups):
        self.groups = groups
        self.tokens, self.blocks, self.prompts = {}, {}, {}

    def apply(self, plan):
        for row in plan.dropped:
            del self.tokens[row]
        for added in plan.added:
            self.tokens[added.row] = list(added.tokens)
            self.blocks[added.row] = [list(group) for group in added.blocks]
            self.prompts[added.row] = added.num_prompt
        for new in plan.new_blocks:
            for row, group, place, block in zip(new.rows, new.groups, new.places, new.blocks, strict=True):
                assert len(self.blocks[row][group]) == place
                self.blocks[row][group].append(block)

    def expected(self, plan):
        ids, positions, prompts = [], [], []
        slots = [[] for _ in range(self.groups)]
        for row, count, start in zip(plan.rows, plan.num_tokens, plan.starts):
            for place in range(start, start + count):
                ids.append(self.tokens[row][place])
                positions.append(place)
                prompts.append(self.prompts[row])
                for group in range(self.groups):
                    slots[group].append(self.blocks[row][group][place // BLOCK] * BLOCK + place % BLOCK)
        return ids, positions, prompts, slots


def random_plan(rng, naive, computed, step):
    """Drops, additions, and a stretch of what is known for some rows, with the blocks it needs."""
    dropped = [row for row in naive.tokens if rng.random() < 0.2]
    free = [row for row in range(ROWS) if row not in naive.tokens or row in dropped]
    added, new_blocks, rows, num, starts, sample = [], [], [], [], [], []
    for row in [row for row in free if rng.random() < 0.6]:
        count = int(rng.integers(1, LENGTH - 1))
        blocks = rng.integers(1, BLOCKS, (naive.groups, -(-count // BLOCK))).tolist()
        tokens = rng.integers(0, VOCAB, count).tolist()
        start = int(rng.integers(0, count))
        computed[row] = start
        added.append(AddedRow(row, "x", tokens, int(rng.integers(1, count + 1)), start, greedy(), blocks))
    known = {row: len(tokens) for row, tokens in naive.tokens.items() if row not in dropped}
    known |= {each.row: len(each.tokens) for each in added}
    held = {row: len(naive.blocks[row][0]) for row in known if row in naive.blocks}
    held |= {each.row: len(each.blocks[0]) for each in added}
    for row in rng.permutation(list(known)).tolist():
        left = known[row] - computed[row]
        if left < 1 or known[row] >= LENGTH or rng.random() < 0.2:
            continue
        count = int(rng.integers(1, left + 1))
        needed = -(-(computed[row] + count) // BLOCK)
        if needed > held[row]:
            places = list(range(held[row], needed)) * naive.groups
            groups = np.repeat(range(naive.groups), needed - held[row]).tolist()
            fresh = rng.integers(1, BLOCKS, len(places)).tolist()
            new_blocks.append(NewBlocks([row] * len(places), groups, places, fresh))
        if count == left:
            sample.append(len(rows))
        rows.append(row)
        num.append(count)
        starts.append(computed[row])
        computed[row] += count
    return StepPlan(step, dropped, added, new_blocks, rows, num, starts, sample)


def staged(*sizes):
    triton = pytest.importorskip("octavo.kernels.triton.attention")
    if not pytest.importorskip("triton").knobs.runtime.interpret:
        pytest.skip("the table lies on the host, where only the interpreter's kernels look")
    return StagedBatchBuilder(*sizes, triton.TritonAhead(1, 2, 64, 2, 16))


@pytest.mark.parametrize("kind", [BatchBuilder, HostBatchBuilder, staged])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_batches_equal_the_naive_model(seed, groups, kind, monkeypatch):
    monkeypatch.setattr("octavo.worker.table.LONG", 20)  # longer runs have a copy of their own
    rng = np.random.default_rng(seed)
    platform = CpuPlatform()
    stager = Stager(platform, 3, 8)
    table = RequestTable(platform, stager, layout(groups, BLOCK, BLOCKS), ROWS, LENGTH, VOCAB)
    builder = kind(table, stager, ROWS * LENGTH, ROWS)
    naive, computed = Naive(groups), {}
    for step in range(60):
        plan = random_plan(rng, naive, computed, step)
        naive.apply(plan)
        table.apply(plan)
        batch = builder.build(plan)
        ids, positions, prompts, slots = naive.expected(plan)
        assert batch.input_ids.tolist() == ids
        assert batch.positions.tolist() == positions
        assert batch.prompt_lens.tolist() == prompts
        ends = np.cumsum([0, *plan.num_tokens])
        lengths = [a + b for a, b in zip(plan.starts, plan.num_tokens)]
        for group, meta in enumerate(batch.groups):
            assert meta.slots.tolist() == slots[group]
            assert meta.query_start.tolist() == ends.tolist()
            assert meta.seq_lens.tolist() == meta.seq_lens_host == lengths
            assert meta.query_lens == plan.num_tokens
            assert meta.num_rows == len(plan.rows)
            for index, row in enumerate(plan.rows):
                count = -(-lengths[index] // BLOCK)
                assert meta.block_table[index, :count].tolist() == naive.blocks[row][group][:count]
        assert batch.sample_rows.tolist() == [plan.rows[index] for index in plan.sample]
        assert batch.sample_index.tolist() == [int(ends[index + 1]) - 1 for index in plan.sample]
        drawn = rng.integers(0, VOCAB, len(plan.sample))
        table.write(batch.sample_rows, batch.sample_positions, torch.from_numpy(drawn))
        for index, token in zip(plan.sample, drawn.tolist()):
            naive.tokens[plan.rows[index]].append(token)
        assert table.tokens[table.scratch].abs().sum() == 0
        assert table.blocks[:, table.scratch].abs().sum() == 0


@pytest.mark.parametrize("kind", [BatchBuilder, HostBatchBuilder])
def test_buffers_do_not_move(kind):
    """What a captured graph relies on."""
    platform = CpuPlatform()
    stager = Stager(platform, 3)
    table = RequestTable(platform, stager, layout(1, BLOCK, BLOCKS), ROWS, LENGTH, VOCAB)
    builder = kind(table, stager, 64, ROWS)
    added = AddedRow(0, "x", [1, 2, 3], 3, 0, greedy(), [[4]])
    table.apply(StepPlan(0, [], [added], [], [], [], [], []))
    places = set()
    for plan in (StepPlan(0, [], [], [], [0], [3], [0], [0]), StepPlan(1, [], [], [], [0], [1], [2], [0])):
        batch = builder.build(plan)
        meta = batch.groups[0]
        views = (batch.input_ids, batch.positions, meta.slots, meta.block_table, meta.query_start, meta.seq_lens)
        places.add(tuple(view.data_ptr() for view in views))
    assert len(places) == 1


@pytest.mark.parametrize(
    "added",
    [
        AddedRow(ROWS, "x", [1], 1, 0, greedy(), [[1]]),
        AddedRow(-1, "x", [1], 1, 0, greedy(), [[1]]),
        AddedRow(0, "x", [], 0, 0, greedy(), [[1]]),
        AddedRow(0, "x", [1] * 60, 60, 0, greedy(), [[1]]),
        AddedRow(0, "x", [1], 1, 0, greedy(), [[BLOCKS]]),
        AddedRow(0, "x", [1], 1, 0, greedy(), [[-1]]),
        AddedRow(0, "x", [1], 1, 0, greedy(), [[1] * 13]),
        AddedRow(0, "x", [1], 1, 0, greedy(), [[1], [2]]),
    ],
)
def test_the_table_refuses_what_it_cannot_hold(added):
    platform = CpuPlatform()
    table = RequestTable(platform, Stager(platform, 2), layout(1, BLOCK, BLOCKS), ROWS, LENGTH, VOCAB)
    before = table.tokens.clone()
    good = AddedRow(1, "good", [5, 6], 2, 0, greedy(), [[3]])
    with pytest.raises(EngineError):
        table.apply(StepPlan(0, [], [good, added], [], [], [], [], []))
    assert torch.equal(before, table.tokens)


@pytest.mark.parametrize(
    "new", [(1, 0, 13, 1), (1, 0, -1, 1), (ROWS, 0, 2, 1), (-1, 0, 2, 1), (1, 1, 2, 1), (1, 0, 2, BLOCKS)]
)
def test_the_table_refuses_blocks_that_have_no_place(new):
    platform = CpuPlatform()
    table = RequestTable(platform, Stager(platform, 2), layout(1, BLOCK, BLOCKS), ROWS, LENGTH, VOCAB)
    before = table.lines.clone()
    columns = [[good, bad] for good, bad in zip((2, 0, 0, 5), new)]
    with pytest.raises(EngineError, match="of a new block is not below"):
        table.apply(StepPlan(0, [], [], [NewBlocks(*columns)], [], [], [], []))
    assert torch.equal(before, table.lines)


class Lazy(CpuPlatform):
    """Copies happen only when an event is waited for."""

    def __init__(self):
        super().__init__()
        self.queue, self.events, self.waits = [], [], 0

    def upload(self, host):
        out = torch.empty_like(host)
        self.queue.append((out, host))
        return out

    def event(self):
        work, self.queue = self.queue, []
        platform = self

        class Done:
            def query(self):
                return not work

            def synchronize(self):
                platform.waits += bool(work)
                while work:
                    out, host = work.pop(0)
                    out.copy_(host)

        self.events.append(Done())
        return self.events[-1]

    def finish(self):
        self.event()
        for event in self.events:
            event.synchronize()


@pytest.mark.parametrize("sends_a_step", [1, 2, 3, 7])
def test_staging_waits_for_a_copy_before_it_writes_over_it(sends_a_step):
    """Steps of fewer sends than there are buffers, of as many and of more."""
    platform = Lazy()
    stager = Stager(platform, 2, 4)
    sent = []
    for value in range(7):
        sent.append(stager.send([ints([value] * (3 * value + 1)), float_bits([value / 2])]))
        if value % sends_a_step == sends_a_step - 1:
            stager.guard(platform.event())
    platform.finish()
    for value, (whole, bits) in enumerate(sent):
        assert whole.tolist() == [value] * (3 * value + 1)
        assert bits.view(torch.float32).tolist() == [value / 2]
    assert platform.waits >= (5 if sends_a_step == 1 else 3)


def test_the_runner_names_no_feature():
    text = Path(runner_module.__file__).read_text().lower()
    for word in ("lora", "grammar", "eagle", "ngram", "image", "sleep", "quant", "connector"):
        assert word not in text


def test_the_scratch_row_asks_nothing_of_a_draw():
    platform = CpuPlatform()
    table = RequestTable(platform, Stager(platform, 3, 8), layout(1, BLOCK, BLOCKS), ROWS, LENGTH, VOCAB)
    columns = Columns(table.columns[table.scratch :])
    asked = columns.top_k, columns.top_p, columns.min_p, columns.typical_p, columns.repetition_penalty
    assert [float(each[0]) for each in asked] == [0, 1, 0, 1, 1]
    assert not columns.temperature.any()
    assert not columns.frequency_penalty.any()
    assert not columns.presence_penalty.any()
