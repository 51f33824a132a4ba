"""The drills of death with a real model: OCTAVO_FAULTS_MODEL names its file."""

import asyncio
import signal
import sys
import time

import pytest
from drills import MODEL, drill
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
        async with serving(COMMAND) as client:
            bodies = asked(await name_of(client))
            want = await asyncio.gather(*(client.whole(body) for body in bodies))
            same = total = 0
            for random in d.seeds(most=5 if number == signal.SIGKILL else 1):
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


async def test_a_real_model_leaves_no_process() -> None:
    with drill("M2", "the demo model's API process killed under 8 streams", "engine and children gone within 5 s") as d:
        async with serving(COMMAND) as client:
            tasks = await begun(client, asked(await name_of(client)), 10)
            tree = client.server.tree[1:]
            client.server.process.kill()
            d.recovered.append(await gone(tree, 5.0))
            await asyncio.gather(*tasks, return_exceptions=True)
