"""Slices of long prompts: they leave room for those who run, and cost a lone prompt nothing."""

import pytest
from msgspec.structs import replace

from octavo.base.config import EngineConfig, ModelConfig
from octavo.base.specs import KVGroup, KVLayout, KVSpec
from octavo.base.wire import EngineRequest, Sampling
from octavo.bench.gpu.setting import model_config
from octavo.engine.slices import SHARE, SLOWER, TOGETHER, beside, reach, slices
from octavo.models.registry import read_architecture
from octavo.sched.gates import long_prefill
from octavo.sched.limits import Limits, Slicing
from octavo.sched.scheduler import Scheduler
from octavo.testing.fake_executor import FakeExecutor


def steps(*prompts: int, reach: int = 0, beside: float = 0.0, together: int = 0, apart: bool = True) -> list[list[int]]:
    """Tokens a row of each step; the prompts arrive one step apart, or all at once."""
    layout = KVLayout((KVGroup(KVSpec(1, 1), (0,)),), 4, 100, 4)
    limits = Limits(
        max_model_len=200,
        max_num_seqs=4,
        max_num_batched_tokens=100,
        slicing=Slicing(tokens=16, reach=reach, beside=beside, together=together),
    )
    scheduler, executor = Scheduler(layout, limits), FakeExecutor(max_rows=4, max_tokens=100, vocab_size=97)
    executor.start(layout)
    taken = []
    waiting = list(enumerate(prompts))
    for _ in range(40):
        for number, length in waiting[: 1 if apart else None]:
            tokens = [(number * 31 + place) % 97 for place in range(length)]
            scheduler.add(EngineRequest(f"{number}", tokens, Sampling(seed=0, max_tokens=6, temperature=0.0)))
        waiting = waiting[1:] if apart else []
        plan = scheduler.plan()
        if plan is None:
            return taken
        taken.append(list(plan.num_tokens))
        executor.forward(plan)
        scheduler.update(plan, executor.sample({}).result())
    raise AssertionError("the requests did not end")


def test_a_lone_prompt_is_computed_at_once():
    assert steps(90)[0] == [90]
    assert steps(90, together=40)[0] == [90]


def test_prompts_that_come_together_take_turns():
    """The bound cuts the third of four; who decodes has its token beside it."""
    assert steps(14, 14, 14, 14, apart=False)[0] == [14] * 4
    assert steps(14, 14, 14, 14, apart=False, together=40)[:2] == [[14, 14, 12], [1, 1, 2, 14]]


def test_behind_a_prompt_longer_than_the_bound_nobody_begins():
    assert steps(90, 5, apart=False, together=40)[:2] == [[90], [1, 5]]


def test_beside_others_it_comes_in_slices():
    assert steps(5, 40)[:4] == [[5], [1, 16], [1, 16], [1, 8]]


def test_slices_shrink_as_the_past_grows(monkeypatch):
    """With a reach of 16 tokens: 16 at the start, 16 * 16 / 32 behind 16, then no fewer than a tile."""
    monkeypatch.setattr(long_prefill, "LEAST", 4)
    monkeypatch.setattr(long_prefill, "GRAIN", 4)
    assert [step[-1] for step in steps(5, 40, reach=16)[1:6]] == [16, 8, 4, 4, 4]


def test_slices_grow_with_what_the_others_have_behind_them(monkeypatch):
    """Beside one of 20 tokens, then 21: two tokens for each of those, which shrink with the past of the prompt."""
    monkeypatch.setattr(long_prefill, "LEAST", 4)
    monkeypatch.setattr(long_prefill, "GRAIN", 4)
    assert [step[-1] for step in steps(20, 60, reach=16, beside=2.0)[1:4]] == [40, 12, 8]


def test_long_prompts_take_turns(monkeypatch):
    """The first in line has the slices; the other begins with a tile's worth, then waits, and computes nothing."""
    monkeypatch.setattr(long_prefill, "LEAST", 2)
    monkeypatch.setattr(long_prefill, "GRAIN", 2)
    taken = steps(5, 40, 30, reach=16)
    assert taken[1:6] == [[1, 16], [1, 8, 2], [1, 6], [1, 4], [1, 4]]
    assert sum(map(sum, taken)) == 5 + 40 + 30 + 3 * 5  # its turn comes


def test_a_prompt_that_a_slice_ends_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(long_prefill, "LEAST", 2)
    monkeypatch.setattr(long_prefill, "GRAIN", 2)
    assert steps(5, 60, 10, reach=16)[2] == [1, 8, 10]


def test_reading_a_cached_token_counts_as_part_of_computing_one():
    """Qwen3-0.6B on an H200: 114,688 bytes a token at 4.2 TB/s against 880 MFLOP at 700 TFLOP/s."""
    arch = read_architecture(model_config("qwen3-0.6b"))
    assert beside(arch) == pytest.approx(SHARE * (114_688 / 4.2e12) / (0.88e9 / 700e12), rel=0.12)
    assert slices(EngineConfig(model=ModelConfig(model="x")), arch, "cpu").beside == 0
    assert slices(EngineConfig(model=ModelConfig(model="x")), arch, "cuda").beside == beside(arch)


def test_who_asks_for_larger_steps_gets_them():
    config = EngineConfig(model=ModelConfig(model="x"))
    assert slices(config, None, "cuda").together == TOGETHER
    asked = replace(config, scheduler=replace(config.scheduler, max_num_batched_tokens=1 << 15))
    assert slices(asked, None, "cuda").together == 0


def test_a_token_behind_the_reach_costs_two():
    """Qwen3-0.6B's shape: 440 million weights in its products, 28 layers of 16 heads of 128."""
    arch = read_architecture(model_config("qwen3-0.6b"))
    products = 28 * (1024 * 4096 + 2048 * 1024 + 3 * 1024 * 3072)
    assert reach(arch) == pytest.approx(products / (SLOWER * 2 * 28 * 2048), rel=0.01)
