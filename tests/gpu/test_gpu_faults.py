"""Faults on a real GPU: a kernel that writes where no memory is, an allocation that fails, an engine that is killed.

python -m pytest tests/gpu/test_gpu_faults.py -m gpu

Alone on the card, so without -n: the driver's figures count everybody.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch

from octavo.base.config import RecoveryConfig
from octavo.base.wire import EngineRequest, Sampling
from octavo.engine.client import EngineClient
from octavo.engine.keywords import engine_config
from octavo.testing.tiny import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]

if torch.cuda.is_available():
    from gpu_faults_kit import VARIABLE, RealFault

HERE = Path(__file__).parent
MIB = 1 << 20
KV_BYTES = 2 << 30
FREED_WITHIN_S = 5.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny("qwen3").save(tmp_path_factory.mktemp("model")))


def requests(count=8, max_tokens=120):
    """Greedy and seeded ones of unlike lengths."""
    return [
        EngineRequest(
            f"r{index}",
            [(7 * index + place) % 90 + 3 for place in range(5 + 23 * index)],
            Sampling(seed=index, max_tokens=max_tokens - 7 * index, temperature=0.0 if index % 2 else 0.8),
        )
        for index in range(count)
    ]


async def launch(folder, monkeypatch, fault=None, **options):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
    if fault is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, msgspec.json.encode(fault).decode())
    # fp32: what is computed again stands in other batches, where bf16 rounds otherwise.
    config = engine_config(
        model=folder, device="cuda", dtype="float32", kv_cache_memory_bytes=KV_BYTES, max_num_seqs=16, **options
    )
    return await EngineClient.launch(
        config, recovery=RecoveryConfig(), assembly="gpu_faults_kit:assemble", log_level="error"
    )


async def read(stream):
    tokens = []
    async for output in stream:
        assert output.error is None
        tokens += output.tokens
    return tokens


async def answers(client, asked):
    return await asyncio.gather(*(read(client.submit(one)) for one in asked))


async def idle(client):
    async with asyncio.timeout(20):
        while True:
            stats = await client.control("stats")
            if stats["running"] == stats["waiting"] == stats["kv_usage"] == 0:
                return stats
            await asyncio.sleep(0.02)


def used():
    free, total = torch.cuda.mem_get_info()
    return total - free


async def released(before):
    begin = time.monotonic()
    while used() > before + 64 * MIB:
        assert time.monotonic() - begin < FREED_WITHIN_S
        await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(folder):
    with pytest.MonkeyPatch.context() as patch:

        async def run():
            client = await launch(folder, patch)
            told = await answers(client, requests())
            await client.close()
            return told

        return asyncio.run(run())


@pytest.mark.parametrize("kind", ["illegal", "assertion"])
@pytest.mark.parametrize("at", [6, 60])
async def test_a_device_that_is_lost(folder, undisturbed, kind, at, monkeypatch, tmp_path):
    before = used()
    ledger = tmp_path / "ledger"
    client = await launch(folder, monkeypatch, RealFault(kind=kind, at=at, ledger=str(ledger)))
    assert await answers(client, requests()) == undisturbed
    assert ledger.exists()
    assert client.survival.restarts == 1
    assert client.survival.failed == 0
    print(f"{kind} at step {at}: back after {client.survival.last_restart_s:.2f} s")
    assert used() - before < KV_BYTES + 2048 * MIB  # the lost engine's memory is not held beside the new one's
    await idle(client)
    await client.close()
    await released(before)


async def test_an_engine_that_is_killed(folder, undisturbed, monkeypatch):
    before = used()
    client = await launch(folder, monkeypatch)
    running = asyncio.ensure_future(answers(client, requests()))
    while not (await client.control("stats"))["running"]:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    os.kill(client.pid, signal.SIGKILL)
    assert await running == undisturbed
    assert client.survival.restarts == 1
    print(f"killed: back after {client.survival.last_restart_s:.2f} s")
    await idle(client)
    await client.close()
    await released(before)


async def test_an_allocation_that_fails_makes_steps_smaller(folder, undisturbed, monkeypatch, tmp_path):
    """Torch's own error, raised inside the model."""
    ledger = tmp_path / "ledger"
    fault = RealFault(kind="memory", at=0, ledger=str(ledger), larger_than=40)
    client = await launch(folder, monkeypatch, fault, enforce_eager=True)
    assert await answers(client, requests()) == undisturbed
    assert ledger.stat().st_size > 0
    assert client.survival.restarts == 0
    assert (await idle(client))["failed_steps"] > 0
    await client.close()
