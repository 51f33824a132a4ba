"""A step's numbers, laid out over those of the step before, are those of a buffer that nothing was laid out in."""

import numpy as np
import pytest

from octavo.base.plan import StepPlan
from octavo.kernels.ahead import Room
from octavo.worker.lineup import Lineup
from octavo.worker.numbers import Numbers, cut

SCRATCH = 99


class Lengths:
    """AheadOps that write down what they are told."""

    def places(self, room):
        return 2 * room.rows

    def plan(self, out, room, query_lens, seq_lens, window):
        out[:] = -1
        out[: query_lens.size] = query_lens
        out[room.rows : room.rows + seq_lens.size] = seq_lens if window is None else np.minimum(seq_lens, window)


def numbers(room):
    return Numbers(room, Lengths(), [None, 8], SCRATCH)


def random_plan(rng, room):
    rows = rng.permutation(50)[: int(rng.integers(1, room.rows + 1))].tolist()
    counts = rng.integers(1, 5, len(rows)).tolist() if room.mixed else [1] * len(rows)
    sample = sorted(rng.permutation(len(rows))[: int(rng.integers(1, len(rows) + 1))].tolist())
    starts = rng.integers(0, 30, len(rows)).tolist()
    return StepPlan(1, [], [], [], rows, counts, starts, sample if room.mixed else list(range(len(rows))))


def lay_out(into, lineup, plan):
    seq_lens = np.asarray(plan.starts) + lineup.counts
    into.lay_out(lineup, seq_lens, seq_lens[lineup.sample])


@pytest.mark.parametrize("mixed", [False, True])
def test_what_stays_and_what_goes_on_are_as_if_written_anew(mixed):
    rng = np.random.default_rng(mixed)
    room = Room(8, 32 if mixed else 8, mixed)
    kept = numbers(room)
    for _ in range(60):
        plan = random_plan(rng, room)
        lineup = Lineup.of(plan)
        for _ in range(int(rng.integers(1, 4))):  # steps of the same rows
            assert lineup.is_of(plan)
            fresh = numbers(room)
            lay_out(kept, lineup, plan)
            lay_out(fresh, lineup, plan)
            assert np.array_equal(kept.host, fresh.host)
            ends = [start + count for start, count in zip(plan.starts, plan.num_tokens)]
            sampled = len(plan.sample)
            assert kept.seq_lens.tolist() == ends + [0 if mixed else 1] * (8 - len(ends))
            assert kept.sample_rows.tolist() == [plan.rows[i] for i in plan.sample] + [SCRATCH] * (8 - sampled)
            assert kept.sample_positions.tolist() == [ends[i] for i in plan.sample] + [1] * (8 - sampled)
            assert kept.query_start[len(ends)] == sum(plan.num_tokens)
            plan = StepPlan(2, [], [], [], plan.rows, plan.num_tokens, ends, plan.sample)
    assert not Lineup.of(random_plan(rng, room)).is_of(plan)


def test_views_start_on_sixteen_bytes():
    host = numbers(Room(5, 5, mixed=False)).host
    first, *others = (view.ctypes.data for view in cut(host, [5, 6, 5]))
    assert [at - first for at in others] == [32, 64]
