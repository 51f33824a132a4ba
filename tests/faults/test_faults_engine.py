"""The engine's process dies, hangs or fails under its streams. Each must get its own tokens, all of them, once."""

import asyncio
import os
import signal
import time
from pathlib import Path

import faults_kit as kit
import pytest
from drills import drill
from faults_kit import Told, idle, launch, mixed, read, undisturbed

from octavo.base.config import RecoveryConfig
from octavo.base.errors import EngineDead, EngineError
from octavo.engine.journal import CRASHED
from octavo.testing.faults import Fault


async def until_tokens(told: list[Told], count: int) -> None:
    while sum(len(each.tokens) for each in told) < count:
        await asyncio.sleep(0.002)


async def kill_under_load(client: kit.EngineClient, random: kit.Random, number: int, requests: list) -> list[Told]:
    """Kills the process when a random number of tokens has come, and reads all streams to their ends."""
    told = [Told() for _ in requests]
    readers = [asyncio.create_task(read(client.submit(one), each)) for one, each in zip(requests, told)]
    await until_tokens(told, random.randrange(1, 15 * len(requests)))
    os.kill(client.pid, number)
    return await asyncio.gather(*readers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_killed_mid_stream(number: int) -> None:
    name = signal.Signals(number).name
    with drill(
        f"F2 {name}", f"engine killed by {name} under 18 mixed streams", "every stream whole, to the token"
    ) as d:
        for random in d.seeds():
            client = await launch(latency_s=0.003)
            requests = mixed(random, 18)
            want = await undisturbed(requests)
            results = await kill_under_load(client, random, number, requests)
            assert {one.id: each for one, each in zip(requests, results)} == want
            assert client.survival.restarts == 1
            assert client.survival.failed == 0
            assert not client.restarting
            d.recovered.append(client.survival.last_restart_s)
            await idle(client)
            await client.close()


STAGES = ["forward", "sample", "result", "plan", "update", "riders", "review", "add"]


@pytest.mark.parametrize("stage", STAGES)
async def test_an_exception_at_each_stage_of_a_step(stage: str, tmp_path: Path) -> None:
    in_place = stage in ("forward", "sample", "result", "riders")
    how = "in place" if in_place else "by a restart"
    with drill(f"F8 {stage}", f"an exception in `{stage}`", f"all streams whole; recovered {how}") as d:
        for random in d.seeds():
            ledger = str(tmp_path / f"ledger{d.runs}")
            at = random.randrange(8) if stage == "add" else random.randrange(40)
            client = await launch([Fault(stage=stage, at=at, ledger=ledger)], latency_s=0.001)
            requests = mixed(random, 12)
            want = await undisturbed(requests)
            results = await asyncio.gather(*(read(client.submit(one)) for one in requests))
            assert {one.id: each for one, each in zip(requests, results)} == want
            assert client.survival.restarts == (0 if in_place else 1)
            assert Path(ledger).stat().st_size == 1
            d.recovered += [client.survival.last_restart_s] if not in_place else []
            await idle(client)
            await client.close()


@pytest.mark.parametrize("kind", ["kill", "exit", "device"])
async def test_death_at_a_step(kind: str, tmp_path: Path) -> None:
    says = {
        "kill": "killed between two stages",
        "exit": "ends without a word",
        "device": "illegal access on the device",
    }
    with drill(f"F8 {kind}", f"engine {says[kind]}", "all streams whole after one restart") as d:
        for random in d.seeds():
            stage = random.choice(["forward", "sample", "result", "plan", "update"]) if kind != "device" else "result"
            fault = Fault(stage=stage, kind=kind, at=random.randrange(40), ledger=str(tmp_path / f"ledger{d.runs}"))
            client = await launch([fault], latency_s=0.001)
            requests = mixed(random, 12)
            want = await undisturbed(requests)
            results = await asyncio.gather(*(read(client.submit(one)) for one in requests))
            assert {one.id: each for one, each in zip(requests, results)} == want
            assert client.survival.restarts == 1
            d.recovered.append(client.survival.last_restart_s)
            await idle(client)
            await client.close()


async def test_an_allocation_fails() -> None:
    what = "the device has room for 24 tokens a step where 64 were planned"
    with drill("F6", what, "smaller steps, all streams whole, no restart") as d:
        for random in d.seeds():
            fault = Fault(stage="forward", kind="memory", larger_than=random.choice([18, 24, 40]), times=1000)
            client = await launch([fault], latency_s=0.001)
            requests = mixed(random, 12)
            requests[0].tokens[:] = [random.randrange(kit.VOCAB - 1) for _ in range(60)]  # more than there is room for
            want = await undisturbed(requests)
            results = await asyncio.gather(*(read(client.submit(one)) for one in requests))
            assert {one.id: each for one, each in zip(requests, results)} == want
            assert client.survival.restarts == 0
            assert (await client.control("stats"))["failed_steps"] > 0
            await idle(client)
            await client.close()


async def test_stopped_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.engine.watchdog.QUIET_S", 1.5)
    what = "engine stopped by SIGSTOP under load (patience set to 1.5 s, 10 by default)"
    with drill("F5", what, "found by its silence, killed, all streams whole") as d:
        for random in d.seeds():
            client = await launch(latency_s=0.003)
            requests = mixed(random, 12)
            want = await undisturbed(requests)
            begin = time.monotonic()
            results = await kill_under_load(client, random, signal.SIGSTOP, requests)
            assert {one.id: each for one, each in zip(requests, results)} == want
            assert client.survival.restarts == 1
            d.recovered.append(time.monotonic() - begin)
            await idle(client)
            await client.close()


async def test_stopped_for_a_while() -> None:
    with drill("F5 short", "engine stopped for 1.2 s, then continued", "no restart, all streams whole") as d:
        for random in d.seeds():
            client = await launch(latency_s=0.003)
            requests = mixed(random, 12)
            want = await undisturbed(requests)
            told = [Told() for _ in requests]
            readers = [asyncio.create_task(read(client.submit(one), each)) for one, each in zip(requests, told)]
            await until_tokens(told, 30)
            os.kill(client.pid, signal.SIGSTOP)
            await asyncio.sleep(1.2)
            os.kill(client.pid, signal.SIGCONT)
            assert {one.id: each for one, each in zip(requests, await asyncio.gather(*readers))} == want
            assert client.survival.restarts == 0
            await client.close()


async def test_a_step_that_never_ends(tmp_path: Path) -> None:
    what = "a step that computes for ever (--engine-stall-timeout 2)"
    with drill("F9", what, "killed after its time, all streams whole") as d:
        for random in d.seeds():
            fault = Fault(kind="spin", at=random.randrange(30), ledger=str(tmp_path / f"ledger{d.runs}"))
            client = await launch([fault], latency_s=0.001, recovery=RecoveryConfig(engine_stall_timeout=2.0))
            requests = mixed(random, 8)
            want = await undisturbed(requests)
            with d.timed():
                results = await asyncio.gather(*(read(client.submit(one)) for one in requests))
            assert {one.id: each for one, each in zip(requests, results)} == want
            assert client.survival.restarts == 1
            await client.close()


@pytest.mark.parametrize("stage", ["result", "forward"])
async def test_the_request_that_kills_the_engine(stage: str) -> None:
    """A prompt with token 7 kills the process whenever it is computed; no other prompt has it."""
    what = "one request kills the engine whenever it runs, among 12"
    with drill(f"F8 poison {stage}", what, "it alone gets a 500 after two crashes; the rest whole") as d:
        for random in d.seeds():
            client = await launch([Fault(stage=stage, kind="kill", token=7, times=1000)], latency_s=0.002)
            requests = mixed(random, 12)
            for one in requests:
                one.tokens[:] = [8 if token == 7 else token for token in one.tokens]
            want = await undisturbed(requests)
            place = random.randrange(len(requests))
            poison = kit.EngineRequest("poison", [1, 7, 2], kit.Sampling(seed=1, max_tokens=5))
            streams = []
            for index, one in enumerate(requests):
                if index == place:
                    streams.append(client.submit(poison))
                streams.append(client.submit(one))
            with d.timed():
                results = {stream.id: each for stream, each in zip(streams, await asyncio.gather(*map(read, streams)))}
            told = results.pop("poison")
            assert (told.tokens, told.finish, told.error) == ([], "error", CRASHED)
            assert results == want
            assert client.survival.restarts == 2
            assert client.survival.failed == 1
            await idle(client)
            await client.close()


async def test_two_crashes_from_outside() -> None:
    what = "engine killed twice: under one stream both times, under six more the second time"
    with drill("F2 twice", what, "the one that saw both ends with its error; the six are whole") as d:
        for random in d.seeds():
            client = await launch(latency_s=0.003)
            others = mixed(random, 6, structured=False)
            want = await undisturbed(others)
            long = kit.EngineRequest("long", [1, 2, 3], kit.Sampling(seed=1, max_tokens=400))
            told = Told()
            reader = asyncio.create_task(read(client.submit(long), told))
            await until_tokens([told], random.randrange(1, 20))
            os.kill(client.pid, signal.SIGKILL)
            while client.survival.restarts < 1:
                await asyncio.sleep(0.01)
            await until_tokens([told], len(told.tokens) + 5)
            results = await kill_under_load(client, random, signal.SIGKILL, others)
            await reader
            assert (told.finish, told.error) == ("error", CRASHED)
            assert told.tokens == kit.fakes.expected(long)[0][: len(told.tokens)]
            assert {one.id: each for one, each in zip(others, results)} == want
            assert client.survival.failed == 1
            d.recovered.append(client.survival.last_restart_s)
            await idle(client)
            await client.close()


async def test_a_crash_loop_has_an_end() -> None:
    with drill(
        "F4 loop", "an engine that dies at its first step, always", "given up after the limit, told in one line"
    ) as d:
        for random in d.seeds():
            fault = Fault(
                stage=random.choice(["forward", "sample", "result", "plan", "update"]), kind="kill", times=1000
            )
            client = await launch([fault], recovery=RecoveryConfig(max_engine_restarts=2))
            sampling = kit.Sampling(seed=1, max_tokens=3)
            assert (await read(client.submit(kit.EngineRequest("a", [1], sampling)))).error == CRASHED
            with pytest.raises(EngineDead) as caught:
                await read(client.submit(kit.EngineRequest("b", [1], sampling)))
            last = "failed 3 times within ten minutes; the last time: the engine's process ended by SIGKILL"
            assert last in str(caught.value)
            assert "\n" not in str(caught.value)
            with pytest.raises(EngineDead):
                client.check()
            with pytest.raises(EngineDead):
                client.submit(kit.EngineRequest("late", [1], sampling))
            await client.close()


async def test_a_restart_that_fails_at_first(tmp_path: Path) -> None:
    """As when the memory of the dead process is not free yet."""
    with drill("F22", "the first two new starts fail", "tried again with growing pauses, streams whole") as d:
        for random in d.seeds():
            ledger = str(tmp_path / f"ledger{d.runs}")
            client = await launch(assembly="faults_kit:assemble_once", ledger=ledger, bad_starts=2, latency_s=0.003)
            requests = mixed(random, 6)
            want = await undisturbed(requests)
            with d.timed():
                results = await kill_under_load(client, random, signal.SIGKILL, requests)
            assert {one.id: each for one, each in zip(requests, results)} == want
            assert client.survival.restarts == 1
            await client.close()


async def test_what_comes_and_goes_during_a_restart() -> None:
    what = "requests sent, aborted and dropped while the engine restarts"
    with drill("F10 restart", what, "the new run, the aborted end, no block is left") as d:
        for random in d.seeds():
            client = await launch(latency_s=0.005)
            old, new = mixed(random, 8), mixed(random, 4)
            want = await undisturbed([*old, *new])
            streams = [client.submit(one) for one in old]
            readers = [asyncio.create_task(read(stream)) for stream in streams[2:]]
            await anext(streams[0])
            os.kill(client.pid, signal.SIGKILL)
            while not client.restarting:
                await asyncio.sleep(0.002)
            with pytest.raises(EngineError, match="restarted"):
                await client.control("ping")
            fresh = [asyncio.create_task(read(client.submit(one))) for one in new]
            streams[0].close()
            client.abort([streams[1].id, "unknown"])
            assert (await read(streams[1])).finish == "abort"
            results = await asyncio.gather(*readers, *fresh)
            assert {one.id: each for one, each in zip([*old[2:], *new], results)} == {
                one.id: want[one.id] for one in [*old[2:], *new]
            }
            assert client.survival.restarts == 1
            await idle(client)
            await client.close()


async def test_close_during_a_restart_leaves_no_process() -> None:
    client = await launch(latency_s=0.005)
    first = client.pid
    stream = client.submit(kit.EngineRequest("a", [1], kit.Sampling(seed=1, max_tokens=300)))
    await anext(stream)
    os.kill(first, signal.SIGKILL)
    while not client.restarting:
        await asyncio.sleep(0.002)
    await asyncio.sleep(0.1)
    await client.close()
    with pytest.raises(EngineDead):
        await read(stream)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if "octavo.engine.proc" in Path(f"/proc/{pid}/cmdline").read_text()]
