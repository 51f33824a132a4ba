"""Every place of a step fails once, one after the other: none is sampled. The engine is in this process."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import faults_kit as kit
import pytest
import torch
from drills import drill
from faults_kit import mixed, run, undisturbed
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.base.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from octavo.base.wire import EngineRequest, Sampling
from octavo.engine.assemble import assemble
from octavo.engine.core import Core
from octavo.testing.tiny import tiny


@pytest.mark.parametrize(("kind", "what"), [("memory", "allocation"), ("raise", "exception")])
async def test_each_step_fails_once(kind: str, what: str) -> None:
    """Each step of a run fails at each of its stages, in an engine of its own."""
    with drill(f"F6 each {kind}", f"one {what} at every step of a run, at each stage", "all streams whole") as d:
        placed = 0
        for random in d.seeds(most=20):
            requests = mixed(random, 3, longest=12, structured=False)
            want = await undisturbed(requests)
            for stage in ("forward", "sample", "result"):
                for at in range(1000):
                    fault = {"stage": stage, "kind": kind, "at": at}
                    core = kit.assemble(kit.fakes.config(depth=2, num_blocks=2000, faults=[fault])).core
                    assert await run(core, requests) == want, (stage, at)
                    stats = core.scheduler.stats()
                    assert stats.kv_usage == stats.running == stats.waiting == 0
                    core.shutdown()
                    if not stats.failures:
                        break
                    placed += 1
        d.note = f"{placed} faults"


class FailNth(TorchDispatchMode):
    """The Nth of torch's operations that makes a tensor finds no memory, once. `count` goes on."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.nth, self.count = nth, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        if self.count == self.nth:
            raise torch.OutOfMemoryError("CUDA out of memory. On purpose.")
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama").save(tmp_path_factory.mktemp("model"))


def real(folder: Path) -> Core:
    model = ModelConfig(model=str(folder), max_model_len=64, dtype="float32")
    device = DeviceConfig(device="cpu", attention_backend="reference")
    return assemble(EngineConfig(model=model, device=device, cache=CacheConfig(num_gpu_blocks_override=32))).core


def chosen(random: Random, count: int) -> list[EngineRequest]:
    return [
        EngineRequest(
            f"r{i}",
            [random.randrange(5, 90) for _ in range(random.choice([3, 9, 20]))],
            Sampling(seed=random.randrange(1 << 40), max_tokens=3, temperature=random.choice([0.0, 1.0])),
        )
        for i in range(count)
    ]


async def test_each_operation_finds_no_memory(folder: Path) -> None:
    """A real model; the operations of its first steps fail one by one, with a prompt, decodes, and both."""
    with drill(
        "F6 nth",
        "the Nth of torch's operations finds no memory, N over a tiny model's first steps",
        "all streams whole",
    ) as d:
        failed = 0
        for random in d.seeds(most=10):
            requests = chosen(random, 2)
            core = real(folder)
            want = await run(core, requests)
            with FailNth(0) as counted:
                assert await run(core, requests) == want
            for nth in places(counted.count):
                with FailNth(nth):
                    got = await run(core, requests)
                assert got == want, nth
                stats = core.scheduler.stats()
                assert stats.kv_usage == stats.running == 0
                failed += 1
            d.note = f"{failed} operations, {counted.count} in a run"
            core.shutdown()


def places(count: int) -> Iterator[int]:
    """Each of the first; later steps repeat them, so a few of theirs will do."""
    yield from range(1, min(count, 150))
    yield from range(150, count, 11)
