"""A process that is started ahead: it serves the first launch, and leaves quietly when it is not needed."""

import asyncio
import subprocess
import sys
import time

import psutil
import pytest
from engine_fakes import request
from test_real_engine import folder, tiny  # noqa: F401 - a fixture

from octavo.base.config import EngineConfig
from octavo.engine import spare
from octavo.engine.client import EngineClient
from octavo.engine.proc import Launch
from octavo.engine.process import EngineProcess


@pytest.fixture
def prepared():
    spare.prepare()
    process = spare._spare
    yield process
    if process.poll() is None:
        process.kill()
    spare._spare = None


def test_the_first_launch_takes_it(prepared, folder):  # noqa: F811
    async def scenario():
        async with await EngineClient.launch(tiny(folder)) as client:
            assert client.pid == prepared.pid
            tokens = [token async for output in client.submit(request("a", [3, 9, 27])) for token in output.tokens]
        async with await EngineClient.launch(tiny(folder)) as second:
            assert second.pid != prepared.pid
            again = [token async for output in second.submit(request("a", [3, 9, 27])) for token in output.tokens]
        assert tokens == again
        assert tokens

    asyncio.run(scenario())
    assert prepared.wait(5) == 0


def test_one_that_died_is_not_taken(prepared):
    prepared.kill()
    prepared.wait(5)

    async def scenario():
        assert spare.take() is None

    asyncio.run(scenario())


def test_orders_that_nobody_read_do_not_fail_its_end(monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    while gone.poll() is None:
        time.sleep(0.01)
    monkeypatch.setattr(spare, "start", lambda: gone)

    async def scenario():
        process = EngineProcess(Launch(config=EngineConfig()))
        await process.end(0.0)
        assert await process.wait() == "with exit code 0"

    asyncio.run(scenario())


def test_unneeded_it_leaves_without_a_word():
    code = "from octavo.engine import spare; spare.prepare(); print(spare._spare.pid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    pid = int(done.stdout)
    end = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert done.stderr == ""
