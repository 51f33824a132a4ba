"""The drills of death with a real model: OCTAVO_FAULTS_MODEL names its file."""

import asyncio
import signal
import sys
import time
from contextlib import AsyncExitStack

import psutil
import pytest
from drills import MODEL, Drill, drill
from faults_clients import asking, idlers, percentile, vanish
from faults_server import Client, gone, quiet, serving

pytestmark = pytest.mark.skipif(not MODEL, reason="OCTAVO_FAULTS_MODEL names no model")

COMMAND = [sys.executable, "-m", "octavo", "serve", MODEL, "--port", "PORT", "--max-model-len", "1024"]
COMMAND += [
    "--no-files",
    "--no-response-store",
    "--cpu-kvcache-space",
    "0.25",
    "--threads",
    "1",
    "--log-level",
    "warning",
]
PROMPTS = ["def quicksort(numbers):", "The capital of France is", "import asyncio\n\nasync def", "Once upon a time"]


def asked(name: str) -> list[dict[str, object]]:
    rules: list[dict[str, object]] = [{"temperature": 0}, {"temperature": 0.8, "seed": 11}]
    rules.append({"temperature": 0, "structured_outputs": {"regex": "[a-z ]{60,90}"}})
    return [{"model": name, "prompt": prompt, "max_tokens": 48, **rules[i % 3]} for i, prompt in enumerate(PROMPTS * 2)]


async def name_of(client: Client) -> str:
    async with client.session.get(client.server.url + "/v1/models") as reply:
        return str((await reply.json())["data"][0]["id"])


async def begun(
    client: Client, bodies: list[dict[str, object]], events: int
) -> list["asyncio.Task[dict[str, object]]"]:
    seen: list[float] = []
    tasks = [asyncio.create_task(client.streamed(body, seen)) for body in bodies]
    while len(seen) < events:
        await asyncio.sleep(0.01)
    return tasks


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_real_model_goes_on(number: int) -> None:
    name = signal.Signals(number).name
    what = f"the demo model's engine gets {name} under 8 streams"
    with drill(f"M1 {name}", what, "no error, texts as without it; weights from the page cache") as d:
        async with AsyncExitStack() as stack:
            same = total = 0
            for random in d.seeds():
                if d.runs % 4 == 0:  # more restarts within ten minutes would end it
                    await stack.aclose()
                    client = await stack.enter_async_context(serving(COMMAND))
                    bodies = asked(await name_of(client))
                    want = await asyncio.gather(*(client.whole(body) for body in bodies))
                tasks = await begun(client, bodies, random.randrange(8, 150))
                begin = time.monotonic()
                client.server.engine.send_signal(number)
                await client.wait_for("/ready", 503, 20.0)
                await client.wait_for("/ready", 200, 60.0)
                d.recovered.append(time.monotonic() - begin)
                results = await asyncio.gather(*tasks)
                assert all(result.get("finish") in ("stop", "length") for result in results), results
                assert [result["tokens"] for result in results if result["finish"] == "length"]
                same += sum(result == each for result, each in zip(results, want))
                total += len(want)
                await quiet(client)
            d.note = f"{same} of {total} texts equal to the undisturbed"
            assert same == total


async def round_of(client: Client, bodies: list[dict[str, object]]) -> tuple[list[dict[str, object]], float]:
    """The streams' results, and their tokens a second together."""
    begin = time.monotonic()
    results = await asyncio.gather(*(client.streamed(body) for body in bodies))
    return results, sum(result["tokens"] for result in results) / (time.monotonic() - begin)


async def test_idle_connections_beside_a_real_model() -> None:
    count = 10_000
    what = f"{count} connections that say nothing, or half a request, beside 8 streams of the demo model"
    promise = (
        "/health answers with a p99 under 50 ms, streams go on at 90% of their rate at least, their texts unchanged"
    )
    with drill("M3", what, promise) as d:
        found: list[tuple[float, float, float]] = []
        for _ in d.seeds():
            async with serving([*COMMAND, "--header-timeout", "300"]) as client:
                found.append(await beside_idle(client, count, d))
            late, worst = (max(column) for column in list(zip(*found))[:2])
            share = min(each[2] for each in found)
            d.note = (
                f"/health p99 {late * 1000:.0f} ms, worst {worst * 1000:.0f} ms as they come; best of four rounds"
                f" {share:.0%} of the best of four without them"
            )
            assert late < 0.05
            assert share > 0.9


async def beside_idle(client: Client, count: int, d: Drill) -> tuple[float, float, float]:
    """How long /health took, p99 and worst, and the streams' rate as a share of the one without the connections. Rounds
    with and without them take turns, so that both meet the same machine."""
    bodies = [{**body, "max_tokens": 96, "ignore_eos": True} for body in asked(await name_of(client)) if len(body) == 4]
    bodies = (bodies * 8)[:8]
    want, _ = await round_of(client, bodies)
    server = psutil.Process(client.server.process.pid)
    before = server.num_fds()
    waits: list[float] = []
    with_them, alone = [], []
    for _ in range(4):
        alone.append((await round_of(client, bodies))[1])
        enough = asyncio.Event()
        asks = asyncio.create_task(asking(client, waits, enough))
        idle = await idlers(client, count)
        results, rate = await round_of(client, bodies)
        with_them.append(rate)
        assert results == want
        enough.set()
        await asks
        assert server.num_fds() > before + count - 32  # all are there, but for a few of our own
        for sock in idle:
            vanish(sock)
        with d.timed():
            async with asyncio.timeout(5):
                while server.num_fds() > before + 16:
                    await asyncio.sleep(0.02)
    return percentile(waits, 0.99), max(waits), max(with_them) / max(alone)


async def test_a_real_model_leaves_no_process() -> None:
    with drill("M2", "the demo model's API process killed under 8 streams", "engine and children gone within 5 s") as d:
        for random in d.seeds():
            async with serving(COMMAND) as client:
                tasks = await begun(client, asked(await name_of(client)), random.randrange(8, 100))
                tree = client.server.tree[1:]
                client.server.process.kill()
                d.recovered.append(await gone(tree, 5.0))
                await asyncio.gather(*tasks, return_exceptions=True)
