"""The worker's life: capacity, start, and the ends of things."""

from types import SimpleNamespace

import pytest
import torch
from worker_toy import layout, resolved

from octavo.base.config import CacheConfig
from octavo.base.errors import EngineError, NoRoom
from octavo.base.plan import StepPlan
from octavo.base.specs import KVGroup, KVLayout, KVSpec, block_bytes
from octavo.platform.cpu import CpuPlatform
from octavo.worker import remembered
from octavo.worker.assemble import allocate_kv, kv_views
from octavo.worker.capacity import RESERVE_LEAST, Need, measure, on_device, on_host
from octavo.worker.scratch import largest_plan, small_plan
from octavo.worker.worker import Worker, _fitting

GIB = 1 << 30


class Counting(CpuPlatform):
    """A device with a memory meter that the test sets."""

    counts_memory = True

    def __init__(self, free, total, after=None):
        super().__init__()
        self.free = [free, after if after is not None else free]
        self.total = total
        self.used = 0

    def memory(self):
        return (self.free.pop(0) if len(self.free) > 1 else self.free[0]), self.total

    def start_peak(self):
        return 5 * GIB

    def peak(self):
        return 5 * GIB + self.used


def test_a_step_is_measured_and_utilization_shared_out():
    platform = Counting(free=70 * GIB, total=80 * GIB)

    def step():
        platform.used = 3 * GIB

    need = measure(platform, step)
    assert need == Need(3 * GIB, 0)
    cache = CacheConfig(gpu_memory_utilization=0.5)
    got = on_device(platform, cache, need, libraries_loaded=True, free_at_start=80 * GIB)
    assert got == 40 * GIB - 10 * GIB - 3 * GIB


@pytest.mark.parametrize(
    ("free_at_start", "want"),
    [
        (80, 0.9 * 80 - 10 - 3),  # an empty card: the share of it that we may take
        (50, 40 - 0.8 - 3),  # others hold 30: what is free, less the reserve; theirs is not counted as ours
        (12, 2 - 0.8 - 3),  # nearly full
    ],
)
def test_capacity_is_fitted_to_what_is_free_and_not_to_the_card(free_at_start, want):
    platform = Counting(free=(free_at_start - 10) * GIB, total=80 * GIB)
    cache = CacheConfig(gpu_memory_utilization=0.9)
    got = on_device(platform, cache, Need(3 * GIB, 0), libraries_loaded=True, free_at_start=free_at_start * GIB)
    assert got == pytest.approx(max(0, want) * GIB, abs=2)


def test_capacity_leaves_a_reserve_and_sees_what_libraries_took():
    platform = Counting(free=70 * GIB, total=80 * GIB, after=69 * GIB)
    need = measure(platform, lambda: None)
    assert need == Need(0, GIB)
    expected = 69 * GIB - max(RESERVE_LEAST, int(0.8 * GIB))
    assert (
        on_device(
            platform, CacheConfig(gpu_memory_utilization=1.0), need, libraries_loaded=True, free_at_start=80 * GIB
        )
        == expected
    )
    # A start that remembers has not loaded them yet.
    fresh = Counting(free=70 * GIB, total=80 * GIB)
    assert (
        on_device(fresh, CacheConfig(gpu_memory_utilization=1.0), need, libraries_loaded=False, free_at_start=80 * GIB)
        == expected
    )


def test_what_was_measured_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    key = remembered.key_of("model", 1)
    assert key != remembered.key_of("model", 2)
    assert remembered.recall(key) is None
    remembered.remember(key, Need(5, 7))
    assert remembered.recall(key) == Need(5, 7)
    next(tmp_path.rglob("*.json")).write_text("torn")
    assert remembered.recall(key) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    remembered.remember(key, Need(5, 7))


def test_capacity_is_never_negative():
    platform = Counting(free=GIB, total=80 * GIB)
    cache = CacheConfig(gpu_memory_utilization=0.5)
    assert on_device(platform, cache, Need(0, 0), libraries_loaded=True, free_at_start=80 * GIB) == 0


def test_capacity_of_a_host_is_bounded_by_use_and_by_memory():
    groups = (KVGroup(KVSpec(2, 8), (0, 1)),)
    settings = resolved(max_rows=3, max_model_len=31, block_size=4)
    assert on_host(CpuPlatform(), settings, groups, 4) == (1 + 3 * 8) * block_bytes(groups, 4, 4)
    tight = Counting(free=1000, total=GIB)
    assert on_host(tight, settings, groups, 4) == 500


@pytest.mark.parametrize(
    ("free_gib", "length", "want_gib"),
    [
        (8, 1024, 2.0),  # a quarter
        (64, 1024, 4.0),  # 4 GiB at most
        (128, 1 << 20, 32.0),  # but one whole context
        (20, 1 << 20, 10.0),  # within half of what is free
    ],
)
def test_a_cpu_gives_a_modest_share(free_gib, length, want_gib):
    groups = (KVGroup(KVSpec(1, 1024), (0, 1, 2, 3)),)  # 32 KiB a token in fp32
    settings = resolved(max_rows=1024, max_model_len=length, block_size=16)
    assert on_host(Counting(free_gib * GIB, 128 * GIB), settings, groups, 4) == pytest.approx(want_gib * GIB, rel=0.01)


def test_kv_views_share_blocks_and_not_places():
    spec = KVSpec(num_kv_heads=2, head_dim=3)
    kv = KVLayout((KVGroup(spec, (0, 2)), KVGroup(spec, (1, 3))), 4, 5, 4)
    pool = allocate_kv(CpuPlatform().zeros, kv, torch.float32)
    assert pool.shape == (5, 2, 2, 2, 4, 3)
    views = kv_views(pool, kv)
    for layer, view in enumerate(views):
        assert view.shape == (5, 2, 2, 4, 3)
        view.fill_(layer)
    assert kv.layer_groups == [0, 1, 0, 1]
    # Layers of different groups use the same memory at a slot, by different blocks; those of one group never do.
    assert (views[0] == 1).all()
    assert (views[2] == 3).all()


@pytest.mark.parametrize(("rows", "tokens", "length"), [(4, 64, 60), (8, 8, 60), (8, 5, 60), (2, 500, 60)])
def test_the_largest_plan_is_as_large_as_a_step_may_be(rows, tokens, length):
    plan = largest_plan(layout(), rows, tokens, length)
    assert len(plan.rows) == min(rows, tokens)
    assert plan.total_tokens == min(tokens, rows * length)
    assert max(plan.num_tokens) == min(length, tokens - len(plan.rows) + 1)
    assert plan.sample == plan.rows
    assert {block for added in plan.added for group in added.blocks for block in group} == {0}


def test_small_plan_is_one_row():
    assert small_plan(layout(), 5).num_tokens == [5]


def test_lack_of_memory_at_start_up_is_one_line():
    with (
        pytest.raises(NoRoom, match=r"the model does not fit: 2 GiB of memory are free; take less"),
        _fitting("the model", 2 * GIB, "take less"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")
    wrapped = EngineError("step -1 failed")
    wrapped.__cause__ = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(NoRoom), _fitting("the step", GIB, "lower it"):
        raise wrapped
    with pytest.raises(EngineError), _fitting("the step", GIB, "lower it"):
        raise EngineError("other")


def test_a_worker_that_is_not_started_says_so():
    files = SimpleNamespace(arch=None, path="x")
    config = SimpleNamespace(device=SimpleNamespace(attention_backend="auto"))
    worker = Worker(files, resolved(), config)
    with pytest.raises(EngineError, match="not started"):
        worker.forward(StepPlan(0, [], [], [], [], [], [], []))
    with pytest.raises(EngineError, match="no weights"):
        worker.start(layout())
    worker.shutdown()
    worker.shutdown()
