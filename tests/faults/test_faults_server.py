"""The whole server under faults: processes that die, signals, clients that misbehave, disks and clocks that do."""

import asyncio
import json
import signal
import socket
import struct
import time
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import psutil
import pytest
from drills import drill
from faults_server import Client, Server, bodies, gone, quiet, serving

FAKE = {"latency_s": 0.004, "num_blocks": 600, "max_num_seqs": 64}
STRUCTURED = {
    "model": "tiny",
    "prompt": "x",
    "max_tokens": 450,
    "seed": 5,
    "structured_outputs": {"regex": "[a-z]{400,}"},
}


async def whole(client: Client, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return await asyncio.gather(*(client.whole(body) for body in asked))


async def begun(client: Client, asked: list[dict[str, Any]], events: int) -> tuple[list[Any], list[float]]:
    """Streams that have brought so many events together."""
    seen: list[float] = []
    tasks = [asyncio.create_task(client.streamed(body, seen)) for body in asked]
    while len(seen) < events:
        await asyncio.sleep(0.005)
    return tasks, seen


async def test_clients_see_a_pause() -> None:
    what = "engine killed under 12 HTTP streams"
    promise = "no error, no lost or doubled text; /ready 503 within 2 s, /health 200 all along"
    with drill("F2 http", what, promise) as d:
        async with serving(fake=FAKE) as client:
            for random in d.seeds(8):
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
                # Enough of it: a tenth crash within minutes would be one too many for the default limit.
                if await client.metric("octavo:engine_restarts_total") >= 5:
                    break
            assert await client.metric("octavo:engine_restarts_total") == d.runs + (d.runs == 4 and 1)
            assert await client.metric("octavo:requests_replayed_total") > 0
            assert await client.metric("octavo:requests_failed_by_crash_total") == 0


async def test_no_orphan_whoever_dies() -> None:
    with drill(
        "F3", "API process killed under streams and a compiling child", "nobody left within 5 s; port free"
    ) as d:
        for random in d.seeds(5):
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
        async with serving(fake=FAKE) as client:
            (want,) = await whole(client, [STRUCTURED])
            (task,), _ = await begun(client, [STRUCTURED], 30)
            child = client.server.compiler
            client.server.engine.kill()
            d.recovered.append(await gone([child], 5.0))
            assert await task == want


async def test_sigterm_under_load() -> None:
    with drill(
        "F15", "SIGTERM while 12 streams run", "/ready 503 at once, all streams whole, exit 0, nobody left"
    ) as d:
        for random in d.seeds(5):
            async with serving(fake=FAKE) as client:
                asked = bodies(random, 12)
                want = await whole(client, asked)
                tasks, _ = await begun(client, asked, 30)
                tree = client.server.tree
                client.server.process.send_signal(signal.SIGTERM)
                await client.wait_for("/ready", 503, 1.0)
                assert (await client.streamed(asked[0]))["status"] == 503
                with d.timed():
                    assert await asyncio.gather(*tasks) == want
                    assert await asyncio.to_thread(client.server.process.wait, 15) == 0
                await gone(tree[1:], 5.0)


async def test_sigterm_while_the_engine_restarts() -> None:
    with drill(
        "F15 restart", "SIGTERM right after the engine was killed", "drained all the same: streams whole, exit 0"
    ) as d:
        for random in d.seeds(5):
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
        async with serving(fake={**FAKE, "latency_s": 0.02}, serve={"shutdown_timeout": 60.0}) as client:
            tasks, _ = await begun(client, bodies(Random(1), 6, 400), 12)
            tree = client.server.tree
            client.server.process.send_signal(signal.SIGTERM)
            await client.wait_for("/ready", 503, 1.0)
            client.server.process.send_signal(signal.SIGTERM)
            with d.timed():
                assert await asyncio.to_thread(client.server.process.wait, 5) == 128 + signal.SIGTERM
            await gone(tree[1:], 5.0)
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_crash_loop_ends_the_server() -> None:
    with drill("F4 loop http", "an engine that dies at every step", "error events, then exit 1 with one line") as d:
        faults = [{"kind": "kill", "times": 1000}]
        async with serving(fake=FAKE, faults=faults, recovery={"max_engine_restarts": 2}) as client:
            first = await client.streamed(bodies(Random(1), 1)[0])
            assert first["error"]["type"] == "internal_error" if "error" in first else first["status"] == 500
            second = await client.streamed(bodies(Random(2), 1)[0])
            assert "error" in second or second["status"] == 503
            with d.timed():
                assert await asyncio.to_thread(client.server.process.wait, 15) == 1
            lines = [line for line in client.server.said.splitlines() if line.startswith("octavo: the ")]
            assert len(lines) == 1
            assert "for good: the engine failed 3 times within ten minutes; the last time: " in lines[0]


def vanish(sock: socket.socket) -> None:
    """A reset, not a goodbye."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def ask_raw(
    client: Client, body: dict[str, Any], cut: int | None = None, buffer: int | None = None
) -> socket.socket:
    """A request by hand, all of it or its first `cut` bytes."""
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    sock = socket.socket()
    sock.setblocking(False)
    if buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", client.server.port))
    await loop.sock_sendall(sock, (head.encode() + data)[:cut])
    return sock


async def test_clients_that_vanish_stall_and_talk_nonsense() -> None:
    limits = {"send_timeout": 2.0, "body_gap_timeout": 1.0, "header_timeout": 1.0}
    async with serving(fake={**FAKE, "num_blocks": 8000}, limits=limits) as client:
        asked = bodies(Random(5), 6, 120)
        want = await whole(client, asked)
        await quiet(client)
        files = psutil.Process(client.server.process.pid).num_fds
        baseline = files()
        with drill(
            "F10 vanish", "200 clients that reset at every stage of a request", "all blocks and sockets back"
        ) as d:
            for random in d.seeds(10):
                tasks, _ = await begun(client, asked, 6)
                victims = []
                for _ in range(100 if d.runs else 200):
                    body = {**random.choice(asked), "stream": random.random() < 0.7, "max_tokens": 300}
                    victims.append(await ask_raw(client, body, random.choice([5, 80, 150, None, None, None])))
                    if random.random() < 0.3:
                        vanish(victims.pop(random.randrange(len(victims))))
                await asyncio.sleep(random.random() * 0.2)
                for sock in victims:
                    vanish(sock)
                assert await asyncio.gather(*tasks) == want
                d.recovered.append(await quiet(client))
        with drill(
            "F10 stall",
            "4 clients that do not read their megabytes, 20 that never finish their request",
            "cut off, blocks back",
        ) as d:
            greedy = {**asked[0], "prompt": ["hello"] * 8, "n": 4, "max_tokens": 400, "logprobs": 20, "stream": True}
            hung = [await ask_raw(client, greedy, buffer=4096) for _ in range(4)]  # five megabytes each
            hung += [await ask_raw(client, asked[0], 100 + i) for i in range(20)]
            await asyncio.sleep(0.2)
            assert files() >= baseline + 20
            assert [await client.streamed(body) for body in asked] == want
            with d.timed():
                await quiet(client, 60.0)
                end = time.monotonic() + 15
                while files() > baseline + 3:  # they hold on; the server does not
                    assert time.monotonic() < end, f"{files()} files, {baseline} before"
                    await asyncio.sleep(0.05)
            for sock in hung:
                sock.close()
        with drill(
            "F12", "malformed bodies beside checked streams", "4xx for each, neighbours unchanged, no restart"
        ) as d:
            for random in d.seeds(10):
                tasks, _ = await begun(client, asked, 3)
                answers = await asyncio.gather(*(nonsense(client, random) for _ in range(60)))
                assert all(400 <= status < 500 for status in answers), answers
                assert await asyncio.gather(*tasks) == want
            assert await client.metric("octavo:engine_restarts_total") == 0
        await quiet(client)
        end = time.monotonic() + 5
        while files() > baseline + 4:  # our own idle connections
            assert time.monotonic() < end, f"{files()} files, {baseline} before"
            await asyncio.sleep(0.05)


async def nonsense(client: Client, random: Random) -> int:
    """A body that no request should be; its status."""
    fields: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 5}
    name, value = random.choice(
        [
            ("temperature", -1),
            ("temperature", "hot"),
            ("max_tokens", -5),
            ("max_tokens", 1 << 70),
            ("n", 1000),
            ("logit_bias", {"99999999": 5}),
            ("prompt", [-1]),
            ("prompt", [1 << 40]),
            ("prompt", {"a": 1}),
            ("prompt", "x" * 100_000),
            ("stop", ["x"] * 1000),
            ("seed", "s"),
            ("logprobs", 10_000),
            ("structured_outputs", {"regex": "(" * 50}),
            ("structured_outputs", {"json": {"type": 5}}),
            ("model", "other"),
            ("top_p", 1e308 * 10),
        ]
    )
    data = json.dumps({**fields, name: value}).encode()
    if random.random() < 0.3:
        data = data[: random.randrange(1, len(data) - 1)]
    elif random.random() < 0.2:
        data = random.randbytes(50)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    async with client.session.post(client.server.url + "/v1/completions", data=data, headers=headers) as reply:
        await reply.read()
        return reply.status


@pytest.mark.parametrize("count", [1500, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_idle_connections(count: int) -> None:
    what = f"{count} connections that say nothing, or half a request, beside 8 streams"
    promise = "streams whole, /health answers, sockets back within 5 s"
    with drill(f"F11 {count:05}", what, promise) as d:
        async with serving(fake=FAKE, limits={"header_timeout": 60.0}) as client:
            asked = bodies(Random(3), 8, 120)
            want = await whole(client, asked)
            server = psutil.Process(client.server.process.pid)
            before = server.num_fds()
            loop, idle = asyncio.get_running_loop(), []
            for i in range(count):
                sock = socket.socket()
                sock.setblocking(False)
                await loop.sock_connect(sock, ("127.0.0.1", client.server.port))
                if i % 2:
                    await loop.sock_sendall(sock, b"GET /health HTTP/1.1\r\nHost: lo")
                idle.append(sock)
            tasks, _ = await begun(client, asked, 8)
            waits = []
            for _ in range(30):
                begin = time.monotonic()
                assert await client.status("/health") == 200
                waits.append(time.monotonic() - begin)
            assert await asyncio.gather(*tasks) == want
            assert sorted(waits)[-2] < 0.5
            d.note = f"/health at most {max(waits) * 1000:.0f} ms; {server.memory_info().rss >> 20} MiB"
            for sock in idle:
                vanish(sock)
            with d.timed():
                end = time.monotonic() + 5
                while server.num_fds() > before + 16:
                    assert time.monotonic() < end
                    await asyncio.sleep(0.02)


async def test_the_wall_clock_jumps() -> None:
    with drill(
        "F13", "wall clock a day ahead, a day back, twenty times a second", "nothing times out, streams whole"
    ) as d:
        async with serving(fake=FAKE, jumps=True) as client:
            for random in d.seeds(5):
                asked = bodies(random, 8)
                want = await whole(client, asked)
                tasks, _ = await begun(client, asked, 8)
                if d.runs == 0:
                    client.server.engine.kill()
                assert await asyncio.gather(*tasks) == want
            assert await client.status("/ready") == 200


async def test_the_disk_is_full(tmp_path: Path) -> None:
    """No file of the server may grow beyond 160 KiB."""
    with drill(
        "F14 full", "disk full while a batch and stored responses are written", "batch failed and said so; chat goes on"
    ) as d:
        serve = {"no_files": False, "no_response_store": False, "files_dir": str(tmp_path / "files")}
        serve["response_store"] = str(tmp_path / "responses.db")
        async with serving(fake=FAKE, serve=serve, file_bytes=160 << 10) as client:
            want = await whole(client, bodies(Random(1), 2))
            batch = await run_batch(client, lines=80)
            assert batch["status"] in ("failed", "completed"), batch
            if batch["status"] == "failed":
                assert "could not" in batch["errors"]["data"][0]["message"]
            statuses = [await respond(client) for _ in range(60)]
            assert set(statuses) <= {200, 503}, statuses
            assert await whole(client, bodies(Random(1), 2)) == want
            assert await client.status("/ready") == 200
            d.note = f"batch {batch['status']}; responses {sorted(set(statuses))}"


async def test_folders_that_go_away(tmp_path: Path) -> None:
    with drill(
        "F14 gone", "the folder of files is replaced by a file while the server runs", "chat goes on, the rest says so"
    ) as d:
        folder = tmp_path / "files"
        async with serving(fake=FAKE, serve={"no_files": False, "files_dir": str(folder)}) as client:
            asked = bodies(Random(1), 2)
            want = await whole(client, asked)
            folder.rename(tmp_path / "elsewhere")
            folder.write_text("not a folder")
            form = aiohttp.FormData()
            form.add_field("purpose", "batch")
            form.add_field("file", b"{}", filename="in.jsonl")
            async with client.session.post(client.server.url + "/v1/files", data=form) as reply:
                d.note = f"/v1/files answers {reply.status}"
                assert reply.status >= 400
            assert await whole(client, asked) == want
            assert await client.status("/ready") == 200


def test_a_store_that_cannot_be_opened() -> None:
    with drill("F14 start", "the named file of responses cannot be made", "no start, exit 1, one line that names it"):
        server = Server({"serve": {"no_response_store": False, "response_store": "/proc/nowhere/responses.db"}})
        try:
            assert server.process.wait(20) == 1
        finally:
            server.kill()
        assert server.said == "octavo: /proc/nowhere/responses.db cannot be used: no such file or directory\n"


async def respond(client: Client) -> int:
    body = {"model": "tiny", "input": "hello " * 200, "max_output_tokens": 16}
    async with client.session.post(client.server.url + "/v1/responses", json=body) as reply:
        await reply.read()
        return reply.status


async def run_batch(client: Client, lines: int) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 200, "ignore_eos": True, "logprobs": 5}
    text = "\n".join(
        json.dumps({"custom_id": f"c{i}", "method": "POST", "url": "/v1/completions", "body": body})
        for i in range(lines)
    )
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", text.encode(), filename="in.jsonl", content_type="application/jsonl")
    async with client.session.post(client.server.url + "/v1/files", data=form) as reply:
        uploaded = await reply.json()
    wanted = {"input_file_id": uploaded["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    async with client.session.post(client.server.url + "/v1/batches", json=wanted) as reply:
        batch: dict[str, Any] = await reply.json()
    async with asyncio.timeout(60):
        while batch["status"] not in ("failed", "completed", "cancelled", "expired"):
            await asyncio.sleep(0.1)
            async with client.session.get(f"{client.server.url}/v1/batches/{batch['id']}") as reply:
                batch = await reply.json()
    return batch


def test_a_server_that_cannot_start() -> None:
    server = Server({"fake": {"no such argument": 1}})
    try:
        assert server.process.wait(20) == 1
    finally:
        server.kill()
    assert len([line for line in server.said.splitlines() if line.startswith("octavo: ")]) == 1
