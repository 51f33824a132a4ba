"""Clients that misbehave beside others that do not, and a clock that does."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import psutil
import pytest
from drills import drill
from faults_clients import ask_raw, asking, idlers, nonsense, percentile, vanish
from faults_server import FAKE, Client, begun, bodies, quiet, serving, whole


@asynccontextmanager
async def watched() -> AsyncIterator[tuple[Client, Callable[[], int]]]:
    """A server, and how many files it has open beyond those of its start; in the end there are none."""
    limits = {"send_timeout": 2.0, "body_gap_timeout": 3.0, "header_timeout": 3.0}  # more than a busy loop takes here
    # With room for all that stall at once: they are cut off together, not two by two.
    room = {"num_blocks": 8000, "max_num_seqs": 300, "max_num_batched_tokens": 300}
    async with serving(fake={**FAKE, **room}, limits=limits) as client:
        await whole(client, bodies(Random(5), 6, 120))
        await quiet(client)
        files = psutil.Process(client.server.process.pid).num_fds
        baseline = files()
        yield client, lambda: files() - baseline
        await quiet(client)
        await client.session.close()  # our own idle connections
        end = time.monotonic() + 5
        while files() > baseline:
            assert time.monotonic() < end, f"{files()} files, {baseline} before"
            await asyncio.sleep(0.05)


async def test_clients_that_vanish() -> None:
    what = "1000 clients that reset at once, at every stage of a request; 200 after the first run"
    with drill("F10 vanish", what, "all blocks and sockets back") as d:
        async with watched() as (client, _):
            asked = bodies(Random(5), 6, 120)
            want = await whole(client, asked)
            for random in d.seeds():
                tasks, _ = await begun(client, asked, 6)
                victims = []
                for _ in range(200 if d.runs else 1000):
                    body = {**random.choice(asked), "stream": random.random() < 0.7, "max_tokens": 300}
                    victims.append(await ask_raw(client, body, random.choice([5, 80, 150, None, None, None])))
                    if random.random() < 0.3:
                        vanish(victims.pop(random.randrange(len(victims))))
                await asyncio.sleep(random.random() * 0.2)
                for sock in victims:
                    vanish(sock)
                assert await asyncio.gather(*tasks) == want
                d.recovered.append(await quiet(client))


async def test_clients_that_stall() -> None:
    what = "4 clients that do not read their megabytes, 4 that read a byte a second, 20 that stop within a request"
    with drill("F10 stall", what, "cut off, blocks back, streams beside them whole") as d:
        async with watched() as (client, files):
            asked = bodies(Random(5), 6, 120)
            want = await whole(client, asked)
            for random in d.seeds():
                held = max(0, files())
                hung, slow = await holding(client, random, random.choice(asked))
                sips = asyncio.create_task(sip(slow))
                streams = []
                for each in asked:  # they begin at every stage of it
                    await asyncio.sleep(random.random() * 0.5)
                    streams.append(asyncio.create_task(client.streamed(each)))
                assert await asyncio.gather(*streams) == want
                with d.timed():
                    await quiet(client, 60.0)
                    end = time.monotonic() + 15
                    while files() > held + len(asked) + 3:  # they hold on; the server does not
                        assert time.monotonic() < end, f"{files()} files, {held} before"
                        await asyncio.sleep(0.05)
                sips.cancel()
                for sock in hung + slow:
                    sock.close()


async def test_clients_that_talk_nonsense() -> None:
    promise = "4xx for each, neighbours unchanged, no restart"
    with drill("F12", "malformed bodies beside 64 checked streams", promise) as d:
        async with watched() as (client, _):
            asked = bodies(Random(6), 64, 120)
            want = await whole(client, asked)
            for random in d.seeds():
                tasks, _ = await begun(client, asked, 3)
                answers = await asyncio.gather(*(nonsense(client, random) for _ in range(60)))
                assert all(400 <= status < 500 for status in answers), answers
                assert await asyncio.gather(*tasks) == want
            assert await client.metric("octavo:engine_restarts_total") == 0


async def holding(
    client: Client, random: Random, body: dict[str, Any]
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Clients that take nothing of their answers, or stop within a request; and four that are to read slowly."""
    greedy = {**body, "prompt": ["hello"] * 8, "n": 4, "max_tokens": 400, "logprobs": 20, "stream": True}
    hung = [await ask_raw(client, greedy, buffer=4096) for _ in range(4)]  # five megabytes each
    hung += [await ask_raw(client, body, random.randrange(1, 150)) for _ in range(20)]
    return hung, [await ask_raw(client, {**greedy, "seed": i}, buffer=4096) for i in range(4)]


async def sip(socks: list[socket.socket]) -> None:
    """A byte a second from each, until they are cut off."""
    loop = asyncio.get_running_loop()
    while True:
        for sock in socks:
            with contextlib.suppress(OSError):
                await asyncio.wait_for(loop.sock_recv(sock, 1), 0.05)
        await asyncio.sleep(1.0)


@pytest.mark.parametrize("count", [1500, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_idle_connections(count: int) -> None:
    what = f"{count} connections that say nothing, or half a request, beside 8 streams"
    promise = "streams whole, /health answers with a p99 under 50 ms, sockets back within 5 s"
    with drill(f"F11 {count:05}", what, promise) as d:
        notes = []
        for random in d.seeds():
            async with serving(fake=FAKE, limits={"header_timeout": 60.0}) as client:
                asked = bodies(random, 8, 120)
                want = await whole(client, asked)
                server = psutil.Process(client.server.process.pid)
                before = server.num_fds()
                waits: list[float] = []
                enough = asyncio.Event()
                asks = asyncio.create_task(asking(client, waits, enough))
                idle = await idlers(client, count)
                while len(waits) < 300:
                    tasks, _ = await begun(client, asked, 8)
                    assert await asyncio.gather(*tasks) == want
                enough.set()
                await asks
                assert server.num_fds() > before + count - 32  # all are there, but for a few of our own
                late, worst = percentile(waits, 0.99) * 1000, max(waits) * 1000
                notes.append((late, worst, server.memory_info().rss >> 20))
                late, worst, size = map(max, zip(*notes))
                d.note = f"p99 {late:.0f} ms, worst {worst:.0f} ms as they come; {size} MiB"
                assert late < 50
                for sock in idle:
                    vanish(sock)
                with d.timed():
                    end = time.monotonic() + 5
                    while server.num_fds() > before + 16:
                        assert time.monotonic() < end
                        await asyncio.sleep(0.02)


async def test_the_wall_clock_jumps() -> None:
    with drill(
        "F13",
        "wall clock a day ahead, a day back, twenty times a second",
        "streams whole; a timeout of 0.5 s ends its request after 0.5 to 1.5 s",
    ) as d:
        async with serving(fake=FAKE, jumps=True) as client:
            for random in d.seeds():
                asked = bodies(random, 8)
                want = await whole(client, asked)
                tasks, _ = await begun(client, asked, 8)
                if d.runs == 0:
                    client.server.engine.kill()
                assert await asyncio.gather(*tasks) == want
                begin = time.monotonic()
                late = await client.streamed({**asked[0], "max_tokens": 450, "timeout": 0.5})
                assert "error" in late, late
                assert 0.5 <= time.monotonic() - begin < 1.5
            assert await client.status("/ready") == 200
