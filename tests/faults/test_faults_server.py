"""The server's processes die or are told to end, under streams."""

import asyncio
import signal
import socket
import time

from drills import drill
from faults_server import FAKE, STRUCTURED, Server, begun, bodies, gone, quiet, serving, whole

DEADLY = ["forward", "sample", "result", "plan", "update"]


async def test_clients_see_a_pause() -> None:
    what = "engine killed under 12 HTTP streams"
    promise = "no error, no lost or doubled text; /ready 503 within 2 s, /health 200 all along"
    with drill("F2 http", what, promise) as d:
        for random in d.seeds():
            async with serving(fake=FAKE) as client:  # a new one each time: restarts that follow each other are delayed
                asked = bodies(random, 12)
                want = await whole(client, asked)
                tasks, seen = await begun(client, asked, random.randrange(12, 120))
                begin = time.monotonic()
                client.server.engine.kill()
                await client.wait_for("/ready", 503, 2.0)
                assert await client.status("/health") == 200
                assert await client.status("/health?progress") == 503
                before = len(seen)
                while len(seen) == before:
                    await asyncio.sleep(0.002)
                d.recovered.append(time.monotonic() - begin)
                assert await asyncio.gather(*tasks) == want
                assert await client.status("/ready") == 200
                assert await client.status("/health?progress=5") == 200
                await quiet(client)
                assert await client.metric("octavo:engine_restarts_total") == 1
                assert await client.metric("octavo:requests_replayed_total") > 0
                assert await client.metric("octavo:requests_failed_by_crash_total") == 0


async def test_no_orphan_whoever_dies() -> None:
    with drill(
        "F3", "API process killed under streams and a compiling child", "nobody left within 5 s; port free"
    ) as d:
        for random in d.seeds():
            async with serving(fake=FAKE) as client:
                tasks, _ = await begun(client, [*bodies(random, 4, 400), STRUCTURED], 10)
                tree = [client.server.engine, client.server.compiler]
                client.server.process.kill()
                d.recovered.append(await gone(tree, 5.0))
                await asyncio.gather(*tasks, return_exceptions=True)
                with socket.socket() as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind(("127.0.0.1", client.server.port))
    with drill(
        "F2 children", "engine killed with a compiling child", "the child is gone, the constraint holds on"
    ) as d:
        for random in d.seeds():
            async with serving(fake=FAKE) as client:
                (want,) = await whole(client, [STRUCTURED])
                (task,), _ = await begun(client, [STRUCTURED], random.randrange(1, 60))
                child = client.server.compiler
                client.server.engine.kill()
                d.recovered.append(await gone([child], 5.0))
                assert await task == want


async def test_sigterm_under_load() -> None:
    with drill(
        "F15", "SIGTERM while 200 streams run or wait", "/ready 503 at once, all streams whole, exit 0, nobody left"
    ) as d:
        for random in d.seeds():
            async with serving(fake=FAKE, serve={"shutdown_timeout": 120.0}) as client:
                asked = bodies(random, 200, 40)
                want = await whole(client, asked)
                tasks, _ = await begun(client, asked, 30)
                while await client.total("octavo:request_params_n_sum") < 2 * len(asked):  # all are in
                    await asyncio.sleep(0.01)
                tree = client.server.tree
                client.server.process.send_signal(signal.SIGTERM)
                await client.wait_for("/ready", 503, 1.0)
                assert (await client.streamed(asked[0]))["status"] == 503
                with d.timed():
                    assert await asyncio.gather(*tasks) == want
                    assert await asyncio.to_thread(client.server.process.wait, 130) == 0
                await gone(tree[1:], 5.0)


async def test_a_drain_that_takes_too_long() -> None:
    what = "SIGTERM, and streams that take longer than --shutdown-timeout 1"
    with drill("F15 deadline", what, "cut at the deadline with an error event each, exit 0, nobody left") as d:
        for random in d.seeds():
            async with serving(fake={**FAKE, "latency_s": 0.03}, serve={"shutdown_timeout": 1.0}) as client:
                long = [body for body in bodies(random, 12, 400) if "structured_outputs" not in body]
                tasks, _ = await begun(client, long, 16)
                tree = client.server.tree
                client.server.process.send_signal(signal.SIGTERM)
                with d.timed():
                    results = await asyncio.gather(*tasks)
                    assert await asyncio.to_thread(client.server.process.wait, 10) == 0
                assert all(result.get("error") and not result["done"] for result in results), results
                assert d.recovered[-1] < 6.0
                await gone(tree[1:], 5.0)


async def test_sigterm_while_the_engine_restarts() -> None:
    with drill(
        "F15 restart", "SIGTERM right after the engine was killed", "drained all the same: streams whole, exit 0"
    ) as d:
        for random in d.seeds():
            async with serving(fake=FAKE) as client:
                asked = bodies(random, 6)
                want = await whole(client, asked)
                tasks, _ = await begun(client, asked, 20)
                client.server.engine.kill()
                await client.wait_for("/ready", 503, 2.0)
                client.server.process.send_signal(signal.SIGTERM)
                assert await asyncio.gather(*tasks) == want
                assert await asyncio.to_thread(client.server.process.wait, 15) == 0


async def test_a_second_sigterm() -> None:
    with drill("F15 second", "a second SIGTERM during the drain", "ended at once, exit 143, nobody left") as d:
        for random in d.seeds():
            async with serving(fake={**FAKE, "latency_s": 0.02}, serve={"shutdown_timeout": 60.0}) as client:
                tasks, _ = await begun(client, bodies(random, 6, 400), random.randrange(6, 60))
                tree = client.server.tree
                client.server.process.send_signal(signal.SIGTERM)
                await client.wait_for("/ready", 503, 1.0)
                await asyncio.sleep(random.random() * 0.3)
                client.server.process.send_signal(signal.SIGTERM)
                with d.timed():
                    assert await asyncio.to_thread(client.server.process.wait, 5) == 128 + signal.SIGTERM
                await gone(tree[1:], 5.0)
                await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_crash_loop_ends_the_server() -> None:
    with drill("F4 loop http", "an engine that dies at every step", "error events, then exit 1 with one line") as d:
        for random in d.seeds():
            faults = [{"stage": random.choice(DEADLY), "kind": "kill", "times": 1000}]
            async with serving(fake=FAKE, faults=faults, recovery={"max_engine_restarts": 2}) as client:
                first = await client.streamed(bodies(random, 1)[0])
                assert first["error"]["type"] == "internal_error" if "error" in first else first["status"] == 500
                second = await client.streamed(bodies(random, 1)[0])
                assert "error" in second or second["status"] == 503
                with d.timed():
                    assert await asyncio.to_thread(client.server.process.wait, 15) == 1
                lines = [line for line in client.server.said.splitlines() if line.startswith("octavo: the ")]
                assert len(lines) == 1
                assert "for good: the engine failed 3 times within ten minutes; the last time: " in lines[0]


def test_a_server_that_cannot_start() -> None:
    server = Server({"fake": {"no such argument": 1}})
    try:
        assert server.process.wait(20) == 1
    finally:
        server.kill()
    assert len([line for line in server.said.splitlines() if line.startswith("octavo: ")]) == 1
