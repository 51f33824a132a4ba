"""What a step asks of the device: each launch costs the host ten microseconds, so they are counted."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from worker_toy import OPS, Driver, NewBlocks, ToyModel, greedy, layout, resolved

from octavo.kernels.ahead import Room
from octavo.platform.cpu import CpuPlatform
from octavo.worker.assemble import build_runner
from octavo.worker.columns import is_bare


class Plans:
    """AheadOps whose attention needs one number a row, and nothing on the device: the model is never asked again."""

    fresh_rooms = False

    def __init__(self, *shape):
        del shape

    def places(self, room: Room) -> int:
        return room.rows

    def plan(self, out, room, query_lens, seq_lens, window):
        del room, query_lens, window
        out[: seq_lens.size] = seq_lens

    def attach(self, meta, room, window, plan):
        """Nothing to tell."""

    def stage(self, *args):
        """Nothing to find."""


class Captures(CpuPlatform):
    """Work that is captured is not done again, as if the device did it: what is left is what the host launches."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def capture(self, work, rehearse=None):
        del rehearse
        result = work(lambda: None)

        def replay():
            self.counts["graph"] += 1
            return result

        return SimpleNamespace(replay=replay)

    def event(self):
        self.counts["event"] += 1
        return super().event()


class Cramped(Captures):
    """It has no memory for any captured work."""

    counts_memory = True

    def capture(self, work, rehearse=None):
        del work, rehearse
        self.counts["capture"] += 1
        raise torch.OutOfMemoryError("out of memory")


class Launches(TorchDispatchMode):
    """Counts operations that are more than another view of the same memory."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        if not func.is_view:
            self.counts[func.overloadpacket._qualified_op_name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


class Counted(ToyModel):
    def __call__(self, input_ids, positions, ctx):
        del positions, ctx
        return torch.zeros(input_ids.numel(), 1)


class Bench:
    """A runner with all rooms captured that the device has memory for; `step` gives the launches of one."""

    def __init__(self, platform=Captures):
        self.platform = platform()
        ops = SimpleNamespace(**{**vars(OPS), "ahead": Plans})
        settings, kv = resolved(max_rows=16, max_tokens=128), layout(num_blocks=600)
        runner = build_runner(self.platform, ops, Counted(), kv, settings, 50, capture=True)
        while runner.prepare():
            pass
        self.driver = Driver(runner)
        self.step([self.added(0, [1])], [0], [1], [0], [0])

    def added(self, row, prompt):
        return self.driver.added(row, prompt)

    def step(self, *plan, **more):
        self.platform.counts.clear()
        with Launches() as launches:
            self.driver.launch(*plan, **more).result()
        return launches.counts + self.platform.counts


LEAST = Counter(copy_=2, graph=2, event=1)


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_a_decode_step_is_two_copies_two_graphs_and_an_event(rows):
    """Requests that start beside it add a copy, a wipe and a scatter, however many there are; one alone a wipe and two
    copies."""
    bench, which = Bench(), list(range(rows))
    start = bench.step([bench.added(row, [1] * 7) for row in which], which, [7] * rows, [0] * rows, which)
    alone = Counter(zero_=1, copy_=2)
    assert start == LEAST + (alone if rows == 1 else Counter(clone=1, index_fill_=1, index_copy_=1))
    for step in range(4):
        assert bench.step((), which, [1] * rows, [7 + step] * rows, which) == LEAST


def test_what_cannot_be_captured_is_not_tried_at_every_step():
    bench = Bench(Cramped)
    tries = [bench.step((), [0], [1], [1 + step], [0])["capture"] for step in range(50)]
    assert sum(tries) == 1


def test_a_new_block_adds_nothing_and_several_a_copy_and_a_scatter():
    one, two = NewBlocks([0], [0], [2], [9]), NewBlocks([0, 0], [0, 0], [3, 4], [9, 8])
    bench = Bench()
    assert bench.step((), [0], [1], [1], [0], new_blocks=[one]) == LEAST
    assert bench.step((), [0], [1], [2], [0], new_blocks=[two]) == LEAST + Counter(clone=1, index_copy_=1)


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_a_step_of_rows_with_a_temperature_is_one_graph_more(rows):
    bench, which = Bench(), list(range(rows))
    samplings = [greedy(temperature=0.7, seed=row) for row in which]
    added = [bench.driver.added(row, [1] * 7, sampling=sampling) for row, sampling in zip(which, samplings)]
    bench.step(added, which, [7] * rows, [0] * rows, which)
    for step in range(4):
        assert bench.step((), which, [1] * rows, [7 + step] * rows, which) == LEAST + Counter(graph=1)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_step_that_tells_log_probabilities_is_three_graphs_and_a_copy_more(temperature):
    """Than one of the likeliest tokens: the logits, a copy of them, and what is told, beside the draw."""
    bench, which = Bench(), list(range(5))
    samplings = [greedy(temperature=temperature, seed=row, logprobs=row) for row in which]
    added = [bench.driver.added(row, [1] * 7, sampling=sampling) for row, sampling in zip(which, samplings)]
    bench.step(added, which, [7] * 5, [0] * 5, which)
    for step in range(4):
        assert bench.step((), which, [1] * 5, [7 + step] * 5, which) == LEAST + Counter(graph=3, copy_=1)


@pytest.mark.parametrize(
    "more",
    [{"typical_p": 0.9}, {"logit_bias": ((1, 2.0),)}, {"logprobs": 1, "logprob_token_ids": (5,)}, {"min_tokens": 2}],
    ids=str,
)
def test_rows_that_want_more_are_not_drawn_so(more):
    assert is_bare(greedy(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1, presence_penalty=0.5, logprobs=5))
    assert not is_bare(greedy(temperature=0.7, **more))
