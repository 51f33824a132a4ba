"""Fitting a start to memory: smaller steps, shorter contexts, another try, and one line for what cannot be."""

import msgspec
import pytest
from engine_fakes import ARCH, MACHINE

from octavo.base.config import CacheConfig, EngineConfig, SchedulerConfig
from octavo.base.errors import NoRoom
from octavo.engine import fit
from octavo.engine.resolve import resolve
from octavo.engine.sizing import one_block_bytes
from octavo.testing.fake_executor import FakeExecutor

MIB = 1 << 20
GPU = msgspec.structs.replace(MACHINE, device="cuda", name="a small GPU", total_memory=8 << 30, free_memory=8 << 30)
SPECS = ARCH.kv_specs()
ARCHITECTURE = msgspec.structs.replace(ARCH, max_position=65_536)


class Device(FakeExecutor):
    """A GPU on which a step takes memory by its size, and an allocation may fail."""

    def __init__(self, memory, per_token, *, fixed=0, fail_starts=0):
        super().__init__(200)
        self.memory, self.per_token, self.fixed, self.fail_starts = memory, per_token, fixed, fail_starts
        self.adopted, self.layouts = [], []

    def adopt(self, resolved):
        self.adopted.append(resolved)

    def kv_capacity(self):
        step = self.adopted[-1].max_num_batched_tokens * self.per_token + self.fixed
        if step > self.memory:
            raise NoRoom(f"the largest step does not fit: {self.memory} bytes are free; lower --max-num-batched-tokens")
        return self.memory - step

    def start(self, layout):
        self.layouts.append(layout)
        if self.fail_starts:
            self.fail_starts -= 1
            self.memory //= 2
            raise NoRoom("the KV cache does not fit")
        super().start(layout)


def start(device, *, scheduler=None, cache=None, facts=GPU):
    config = EngineConfig(scheduler=scheduler or SchedulerConfig(), cache=cache or CacheConfig())
    resolved = resolve(config, ARCHITECTURE, facts)
    return fit.start(config, resolved, SPECS, device), resolved


def test_where_memory_is_plenty_nothing_is_fitted():
    device = Device(1024 * MIB, 4096)
    fitted, resolved = start(device)
    assert fitted.resolved == resolved
    assert fitted.sized.notes == []
    assert fitted.sized.max_model_len == 65_536
    assert len(device.layouts) == 1


def test_steps_are_made_smaller_before_the_context():
    device = Device(40 * MIB, 8192)  # a step of the usual 8192 tokens would take it all
    fitted, resolved = start(device)
    assert resolved.max_num_batched_tokens == 8192
    assert fitted.resolved.max_num_batched_tokens < 8192
    assert fitted.sized.max_model_len >= fit.USEFUL_TOKENS
    assert [note for note in fitted.resolved.notes if "smaller steps" in note]
    assert device.adopted[-1].max_num_batched_tokens == fitted.resolved.max_num_batched_tokens
    assert device.adopted[-1].max_model_len == fitted.sized.max_model_len


def test_a_step_that_does_not_fit_is_halved_until_it_does():
    device = Device(4 * MIB, 4096)
    fitted, _ = start(device)
    assert fitted.resolved.max_num_batched_tokens <= 1024
    assert fitted.resolved.max_num_seqs <= fitted.resolved.max_num_batched_tokens


def test_steps_stay_large_where_smaller_ones_would_not_help():
    device = Device(MIB // 4, 0)
    fitted, resolved = start(device)
    assert fitted.resolved.max_num_batched_tokens == resolved.max_num_batched_tokens
    assert 16 < fitted.sized.max_model_len < fit.USEFUL_TOKENS
    assert "tokens need" in fitted.sized.notes[0]


def test_what_was_asked_for_is_not_made_smaller():
    scheduler = SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=64)
    with pytest.raises(NoRoom, match="lower --max-num-batched-tokens"):
        start(Device(30 * MIB, 8192), scheduler=scheduler)
    config = EngineConfig(scheduler=scheduler)
    assert fit.smaller(config, resolve(config, ARCHITECTURE, GPU)) is None


def test_the_impossible_is_one_line_with_bytes_and_a_flag():
    device = Device(100, 0)
    with pytest.raises(NoRoom) as caught:
        start(device)
    text = str(caught.value)
    assert "100 B are left" in text
    assert "the least that works is" in text
    assert "--gpu-memory-utilization" in text
    assert "\n" not in text


def test_memory_that_goes_between_measuring_and_allocating_is_fitted_again():
    device = Device(64 * MIB, 0, fail_starts=2)
    fitted, _ = start(device)
    first, second, third = (layout.num_blocks for layout in device.layouts)
    assert first > second > third
    assert "were not to be had" in fitted.sized.notes[0]
    with pytest.raises(NoRoom, match=r"a KV cache of .* does not fit .* lower --gpu-memory-utilization"):
        start(Device(64 * MIB, 0, fail_starts=3))


def test_a_cache_that_was_asked_for_gives_way_to_what_there_is():
    one = one_block_bytes(SPECS, 16, "float32")
    device = Device(8 * MIB, 0, fail_starts=1)
    fitted, _ = start(device, cache=CacheConfig(kv_cache_memory_bytes=1000 * MIB))
    assert device.layouts[0].num_blocks == 1000 * MIB // one
    assert fitted.sized.total_bytes <= 4 * MIB
    assert "were not to be had" in fitted.sized.notes[0]


def test_a_host_is_not_asked_for_more_than_it_has(monkeypatch):
    monkeypatch.setattr(fit, "memory_limits", lambda: (6 * MIB, 16 * MIB))
    fitted, _ = start(Device(MIB, 0), cache=CacheConfig(cpu_kvcache_space=1.0), facts=MACHINE)
    assert 5 * MIB < fitted.sized.total_bytes <= 6 * MIB
    assert fitted.sized.notes[0] == "KV cache of 6 MiB: 1 GiB were asked for, that much is free"
