"""EngineClient against real engine processes that hold a FakeExecutor."""

import asyncio
import gc
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import textwrap
import time

import engine_fakes as fakes
import psutil
import pytest
import zmq
from engine_fakes import config, expected, request

from octavo.base import ipc
from octavo.base.config import RecoveryConfig
from octavo.base.errors import ConfigError, EngineDead, EngineError, Unavailable, UserError
from octavo.engine.client import EngineClient

ASSEMBLY = "engine_fakes:assemble"


@pytest.fixture(autouse=True)
def child_finds_the_fakes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(fakes.HERE))


async def launch(assembly=ASSEMBLY, restarts=5, **values):
    recovery = RecoveryConfig(max_engine_restarts=restarts)
    return await EngineClient.launch(config(**values), recovery=recovery, assembly=assembly, log_level="error")


async def read(stream):
    tokens, last = [], None
    async for output in stream:
        tokens += output.tokens
        last = output
    return tokens, last.finish


async def gone(pid, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.mark.parametrize("depth", [1, 2])
async def test_streams_side_by_side_give_their_own_tokens(depth):
    async with await launch(depth=depth) as client:
        wanted = [request(f"r{i}", list(range(i, i + 5)), max_tokens=30) for i in range(20)]
        results = await asyncio.gather(*(read(client.submit(one)) for one in wanted))
        assert results == [expected(one) for one in wanted]
        assert len(client._journal) == 0
        assert client.still_s == 0.0
        assert client.stats.generation_tokens == sum(len(tokens) for tokens, _ in results)
        assert client.ready.vocab_size == fakes.VOCAB
        assert set(client.ready.phases) >= {"kv_cache", "scheduler"}
        assert any("KV cache of" in note for note in client.ready.notes)
        pid, folder = client.pid, client._epoch.link.folder.path
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


async def test_close_and_drop_of_a_stream_abort_on_the_engine():
    async with await launch(latency_s=0.02) as client:
        closed = client.submit(request("closed", [1], max_tokens=400))
        dropped = client.submit(request("dropped", [2], max_tokens=400))
        await anext(closed)
        await anext(dropped)
        closed.close()
        closed.close()
        del dropped
        gc.collect()
        await asyncio.sleep(0)
        assert [output async for output in closed] == []
        await _until_idle(client)
        told = await client.control("stats")
        assert told["generation_tokens"] < 200
        assert told["kv_usage"] == 0
        assert len(client._journal) == 0


async def test_abort_by_id_ends_the_stream_with_a_reason():
    async with await launch(latency_s=0.005) as client:
        stream = client.submit(request("a", [1], max_tokens=400))
        await anext(stream)
        client.abort(["a", "unknown"])
        assert (await read(stream))[1] == "abort"


async def test_a_cancelled_reader_leaves_the_stream_usable():
    async with await launch(latency_s=0.05) as client:
        wanted = request("a", [1, 2], max_tokens=5)
        stream = client.submit(wanted)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.001)
        assert await read(stream) == expected(wanted)


async def test_commands_and_their_errors():
    async with await launch() as client:
        assert await client.control("ping") == 0
        assert await client.control("reset_prefix_cache") is True
        with pytest.raises(EngineError, match="did you mean ping"):
            await client.control("pinf")
        client.check()


async def test_refusals():
    async with await launch(latency_s=0.01, max_waiting=1, max_num_seqs=1) as client:
        streams = [client.submit(request(f"r{i}", [1], max_tokens=20)) for i in range(4)]
        with pytest.raises(UserError, match="running already"):
            client.submit(request("r0", [1]))
        outputs = [[output async for output in stream][-1] for stream in streams]
        assert outputs[0].finish == "length"
        assert 429 in {output.error_code for output in outputs if output.finish == "error"}
        client.drain()
        with pytest.raises(Unavailable):
            client.submit(request("late", [1]))


async def test_idle_engine_takes_no_processor_time():
    async with await launch() as client:
        await read(client.submit(request("a", [1])))
        process = psutil.Process(client.pid)
        before = process.cpu_times()
        await asyncio.sleep(0.5)
        after = process.cpu_times()
        assert after.user + after.system - before.user - before.system <= 0.02


async def test_garbage_on_the_sockets_changes_nothing():
    async with await launch(latency_s=0.002) as client:
        context = zmq.Context()
        strangers = []
        for name in ("in", "out"):
            stranger = context.socket(zmq.PUSH)
            stranger.connect(client._epoch.link.folder.address(name))
            strangers.append(stranger)
        wanted = request("a", [1, 2, 3], max_tokens=60)
        stream = client.submit(wanted)
        for _ in range(20):
            for stranger in strangers:
                stranger.send(os.urandom(300))
                stranger.send(client._epoch.link.key + os.urandom(300))
                stranger.send(b"GET / HTTP/1.1\r\n\r\n")
                stranger.send(pickle.dumps(ValueError("canary")))
                stranger.send_multipart([client._epoch.link.key] * 50)
        assert await read(stream) == expected(wanted)
        assert await client.control("ping") > 0
        await asyncio.sleep(0.05)
        assert client._epoch.link.receiver.dropped == 100
        context.destroy(linger=0)


async def test_signals_to_all_processes_do_not_end_the_engine():
    """Ctrl-C, `timeout` and systemd signal every process of the server; the parent decides, and it drains first."""
    async with await launch(latency_s=0.005) as client:
        wanted = request("a", [1, 2, 3], max_tokens=60)
        stream = client.submit(wanted)
        first = await anext(stream)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(client.pid, number)
        tokens, finish = await read(stream)
        assert (first.tokens + tokens, finish) == expected(wanted)
        assert os.getpgid(client.pid) == os.getsid(client.pid) == client.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
async def test_without_restarts_death_of_the_engine_reaches_every_stream_at_once(number):
    client = await launch(latency_s=0.01, restarts=0)
    streams = [client.submit(request(f"r{i}", [i], max_tokens=400)) for i in range(5)]
    await anext(streams[0])
    os.kill(client.pid, number)
    begin = time.monotonic()
    results = await asyncio.gather(*(read(stream) for stream in streams), return_exceptions=True)
    assert all(isinstance(result, EngineDead) for result in results)
    assert time.monotonic() - begin < 2
    with pytest.raises(EngineDead):
        client.check()
    with pytest.raises(EngineDead):
        client.submit(request("late", [1]))
    with pytest.raises(EngineDead):
        await client.control("ping")
    await client.close()
    await client.close()


async def test_steps_that_keep_failing_end_the_engine_with_its_reason():
    client = await launch(fail_steps=list(range(1000)), restarts=0)
    assert (await read(client.submit(request("r0", [1]))))[1] == "error"
    with pytest.raises(EngineDead, match="steps fail whoever is in them"):
        await read(client.submit(request("r1", [1])))
    await client.close()


async def test_close_ends_open_streams_and_a_hung_engine():
    client = await launch(latency_s=30)
    stream = client.submit(request("a", [1]))
    await asyncio.sleep(0.05)
    os.kill(client.pid, signal.SIGSTOP)
    closing = asyncio.create_task(client.close(grace_s=0.1))
    with pytest.raises(EngineDead, match="shut down"):
        await read(stream)
    os.kill(client.pid, signal.SIGCONT)
    await closing
    assert not psutil.pid_exists(client.pid)


async def test_a_refused_start_is_one_line():
    with pytest.raises(ConfigError, match="the model does not exist") as caught:
        await launch("engine_fakes:assemble_refused")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("assembly", "words"),
    [("engine_fakes:assemble_crash", "unforeseen"), ("engine_fakes:assemble_vanish", "exit code 9")],
)
async def test_a_start_that_breaks_is_told(assembly, words):
    with pytest.raises(EngineError, match=words):
        await launch(assembly)


async def test_memory_that_is_not_there_is_the_operators_to_solve():
    with pytest.raises(ConfigError, match=r"a KV cache of .* does not fit"):
        await launch("engine_fakes:assemble_out_of_memory")


def test_under_uvloop():
    uvloop = pytest.importorskip("uvloop")

    async def main():
        async with await launch(restarts=0) as client:
            wanted = request("a", [1, 2, 3])
            assert await read(client.submit(wanted)) == expected(wanted)
            streams = [client.submit(request(f"r{i}", [i], max_tokens=300)) for i in range(3)]
            os.kill(client.pid, signal.SIGKILL)
            ends = await asyncio.gather(*(read(stream) for stream in streams), return_exceptions=True)
            assert all(isinstance(end, EngineDead) for end in ends)

    uvloop.run(main())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_no_orphan_when_the_parent_dies(number, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio, sys
            from engine_fakes import config, request
            from octavo.engine.client import EngineClient

            async def main():
                client = await EngineClient.launch(config(latency_s=0.01), assembly="engine_fakes:assemble")
                stream = client.submit(request("a", [1], max_tokens=500))
                await anext(stream)
                print(client.pid, flush=True)
                await asyncio.sleep(60)

            asyncio.run(main())
            """
        )
    )
    root = pathlib.Path(fakes.HERE).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{fakes.HERE}{os.pathsep}{root}"}
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment)
    pid = int(await asyncio.to_thread(parent.stdout.readline))
    assert psutil.pid_exists(pid)
    parent.send_signal(number)
    parent.wait()
    assert await gone(pid)
    parent.stdout.close()


async def test_a_process_started_by_hand_says_so():
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "octavo.engine.proc"], input=b"\x00", capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.decode().strip() == "octavo: this process is started by octavo itself, not by hand"


async def test_the_runtime_folder_is_private():
    async with await launch() as client:
        mode = client._epoch.link.folder.path.stat().st_mode
        assert mode & 0o077 == 0
        assert len(client._epoch.link.key) == ipc.KEY_BYTES


async def _until_idle(client):
    for _ in range(200):
        told = await client.control("stats")
        if told["running"] == told["waiting"] == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("requests are still running")
