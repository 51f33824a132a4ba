"""A server process to break, and clients that notice everything."""

import asyncio
import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import psutil

_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_hard, _hard))  # ten thousand connections have two ends
MAIN = Path(__file__).parent / "faults_main.py"
LONG = aiohttp.ClientTimeout(total=120)
FAKE = {"latency_s": 0.004, "num_blocks": 600, "max_num_seqs": 64}
STRUCTURED = {
    "model": "tiny",
    "prompt": "x",
    "max_tokens": 450,
    "seed": 5,
    "structured_outputs": {"regex": "[a-z]{400,}"},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server in a process of its own. `command`: another than faults_main.py's."""

    def __init__(self, orders: dict[str, Any], command: list[str] | None = None, port: int = 0) -> None:
        self.port = port or free_port()
        scheme = "https" if "ssl_certfile" in orders.get("serve", {}) else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        command = command or [sys.executable, str(MAIN), json.dumps({**orders, "port": self.port})]
        command = [part.replace("PORT", str(self.port)) if part == "PORT" else part for part in command]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self._lines: list[str] = []
        self._serving = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)  # a full pipe would hold the server up
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)
            if "octavo: serving" in line:
                self._serving.set()
        self._serving.set()

    def wait_ready(self) -> None:
        """Until it says so."""
        self._serving.wait(180)
        assert any("octavo: serving" in line for line in self._lines), "the server did not start: " + self.said[-2000:]

    @property
    def said(self) -> str:
        """On standard error, so far."""
        return "".join(self._lines)

    @property
    def tree(self) -> list[psutil.Process]:
        """The server, its engine, the engine's children."""
        me = psutil.Process(self.process.pid)
        return [me, *me.children(recursive=True)]

    @property
    def engine(self) -> psutil.Process:
        return self._child("octavo.engine.proc")

    @property
    def compiler(self) -> psutil.Process:
        return self._child("octavo.grammar.compile_worker")

    def _child(self, name: str) -> psutil.Process:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            for process in self.tree:
                try:
                    if name in process.cmdline():
                        return process
                except psutil.Error:
                    continue
            time.sleep(0.01)
        raise AssertionError(f"no {name}")

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


class Client:
    """One session to it."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session

    async def status(self, path: str) -> int:
        try:
            async with self.session.get(self.server.url + path, timeout=aiohttp.ClientTimeout(total=5)) as reply:
                return reply.status
        except (aiohttp.ClientError, TimeoutError):
            return 0

    async def wait_for(self, path: str, status: int, seconds: float = 20.0) -> None:
        async with asyncio.timeout(seconds):
            while await self.status(path) != status:
                await asyncio.sleep(0.02)

    async def metric(self, name: str) -> float:
        async with self.session.get(self.server.url + "/metrics") as reply:
            for line in (await reply.text()).splitlines():
                if line.startswith((name + "{", name + " ")):
                    return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no {name}")

    async def total(self, name: str) -> float:
        """Of a metric, over its labels."""
        async with self.session.get(self.server.url + "/metrics") as reply:
            lines = [line for line in (await reply.text()).splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    async def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a body in one piece."""
        async with self.session.post(self.server.url + "/v1/completions", json=body, timeout=LONG) as reply:
            found: dict[str, Any] = await reply.json()
            assert reply.status == 200, found
            return {"text": found["choices"][0]["text"], "finish": found["choices"][0]["finish_reason"]} | {
                "tokens": found["usage"]["completion_tokens"]
            }

    async def streamed(self, body: dict[str, Any], seen: list[float] | None = None) -> dict[str, Any]:
        """The same from a stream; `seen` gets the time of each event. An error event is the answer's ``error``."""
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        text, finish, tokens, error, done = "", None, None, None, False
        async with self.session.post(self.server.url + "/v1/completions", json=body, timeout=LONG) as reply:
            if reply.status != 200:
                return {"status": reply.status}
            async for line in reply.content:
                if not line.startswith(b"data: "):
                    continue
                if seen is not None:
                    seen.append(time.monotonic())
                if line.strip() == b"data: [DONE]":
                    done = True
                    continue
                event = json.loads(line[6:])
                error = event.get("error", error)
                for choice in event.get("choices", ()):
                    text += choice["text"]
                    finish = choice["finish_reason"] or finish
                if event.get("usage"):
                    tokens = event["usage"]["completion_tokens"]
        if error is not None or not done:
            return {"error": error, "text": text, "done": done}
        return {"text": text, "finish": finish, "tokens": tokens}


@asynccontextmanager
async def serving(command: list[str] | None = None, **orders: Any) -> AsyncIterator[Client]:
    """A server that is ready, and a client of it, with `headers` and `ssl_context`. `mute`: it cannot say so."""
    mute, headers, tls = orders.pop("mute", False), orders.pop("headers", None), orders.pop("ssl_context", True)
    server = Server(orders, command)
    try:
        if not mute:
            await asyncio.to_thread(server.wait_ready)
        connector = aiohttp.TCPConnector(limit=0, ssl=tls)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            client = Client(server, session)
            await client.wait_for("/ready", 200)
            yield client
    finally:
        server.kill()


def bodies(random: Random, count: int, tokens: int = 60) -> list[dict[str, Any]]:
    """Seeded and greedy completions; each third has a constraint."""
    made = []
    for i in range(count):
        body: dict[str, Any] = {
            "model": "tiny",
            "prompt": random.choice(["hello there", "once upon a time", "tell me more about the server"]) * (1 + i % 3),
            "max_tokens": random.randrange(tokens // 2, tokens),
            "temperature": random.choice([0, 1.0]),
            "seed": random.randrange(1 << 31),
            "ignore_eos": True,
        }
        if i % 3 == 2:
            body["structured_outputs"] = {"regex": "([a-z]{3}[0-9]){4,30}"}
            body["ignore_eos"] = False
        made.append(body)
    return made


async def gone(processes: list[psutil.Process], seconds: float) -> float:
    """How long it takes until none of them runs."""
    begin = time.monotonic()
    while alive := [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() - begin < seconds, f"still there: {alive}"
        await asyncio.sleep(0.01)
    return time.monotonic() - begin


async def quiet(client: Client, seconds: float = 10.0) -> float:
    """How long it takes until nothing runs, nothing waits and no block is in use."""
    begin = time.monotonic()
    names = ("octavo:num_requests_running", "octavo:num_requests_waiting", "octavo:kv_cache_usage_perc")
    while any([await client.metric(name) for name in names]):
        assert time.monotonic() - begin < seconds
        await asyncio.sleep(0.02)
    return time.monotonic() - begin


async def whole(client: Client, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return await asyncio.gather(*(client.whole(body) for body in asked))


async def begun(client: Client, asked: list[dict[str, Any]], events: int) -> tuple[list[Any], list[float]]:
    """Streams that have brought so many events together."""
    seen: list[float] = []
    tasks = [asyncio.create_task(client.streamed(body, seen)) for body in asked]
    while len(seen) < events:
        await asyncio.sleep(0.005)
    return tasks, seen
