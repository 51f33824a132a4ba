"""A light HTTP load client: sockets, a split at blank lines and a clock; no JSON is read but the last event's.

It runs in a process of its own (``python -m octavo.bench.raw``: `Orders` in on standard input, `Found` out), so that
it takes nothing from the server's event loop, and says how much of a core it used: near a whole one, its times say
more about itself than about the server.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from octavo.base.errors import EngineError

MAX_EVENT_BYTES = 16 << 20
TEXT, EMPTY, LAST = b'"text":"', b'"text":""', b'"choices":[]'


class Group(Struct, kw_only=True):
    """Requests sent one after another, at most `at_once` at a time, the first `start_s` seconds into the run.

    With `every_s` one is due each so many seconds, whatever became of those before.
    """

    bodies: list[dict[str, Any]]
    at_once: int = 1
    start_s: float = 0.0
    every_s: float | None = None


class Orders(Struct, kw_only=True):
    """What to send where. Streams that still run after `stop_s` seconds are cut off."""

    host: str
    port: int
    path: str
    groups: list[Group]
    stop_s: float = 600.0


class Answer(Struct, kw_only=True):
    """One request. Times in seconds from the run's start."""

    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)  # of packets that brought text
    tokens: int = 0
    done: bool = False
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first text. Raises EngineError when none came."""
        if not self.arrivals:
            raise EngineError(self.error or "no text came")
        return self.arrivals[0] - self.sent


class Found(Struct, kw_only=True):
    """Answers in the order of the bodies, group by group."""

    groups: list[list[Answer]]
    seconds: float
    cpu_share: float  # of one core, over the run


def send(orders: Orders) -> Found:
    """Run the client in a process of its own. Raises EngineError when it fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "octavo.bench.raw"],
            input=msgspec.json.encode(orders),
            stdout=subprocess.PIPE,
            timeout=orders.stop_s + 30.0,
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=Found)
    except (subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise EngineError(f"the load client failed: {error}") from None


class Connection(asyncio.Protocol):
    """One keep-alive connection; takes one request at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buffer = b""
        self._in_head = True
        self._answer = Answer()
        self._over: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end(f"the connection broke off: {error or 'closed'}")

    @property
    def usable(self) -> bool:
        return self._transport is not None

    async def ask(self, request: bytes, answer: Answer) -> None:
        """Send one request and fill `answer` until its stream ends."""
        if self._transport is None:
            raise ConnectionResetError("the connection is closed")
        self._answer, self._in_head, self._buffer = answer, True, b""
        self._over = asyncio.get_running_loop().create_future()
        answer.sent = self._clock()
        self._transport.write(request)
        await self._over

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        now = self._clock()
        self._buffer += data
        if self._in_head and not self._take_head():
            return
        *events, self._buffer = self._buffer.split(b"\n\n")
        if len(self._buffer) > MAX_EVENT_BYTES:
            self.close()
        brought = False
        for event in events:
            if TEXT in event and EMPTY not in event:
                brought = True
            elif b"data: [DONE]" in event:
                self._answer.done = True
            elif LAST in event or b'"error"' in event:
                self._note(event)
        if brought:
            self._answer.arrivals.append(now)
        if self._answer.done:
            self._end(None)

    def _take_head(self) -> bool:
        """Whether the head is past; what the last answer left in the buffer goes with it."""
        begin = self._buffer.find(b"HTTP/1.1 ")
        end = self._buffer.find(b"\r\n\r\n", max(begin, 0))
        if begin < 0 or end < 0:
            return False
        if self._buffer[begin + 9 : begin + 12] != b"200":
            self._answer.error = self._buffer[begin : begin + 400].decode(errors="replace")
            self.close()
            return False
        self._in_head, self._buffer = False, self._buffer[end + 4 :]
        return True

    def _note(self, event: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            # What follows the object may be the frame of the next chunk.
            content, _ = json.JSONDecoder().raw_decode(event[event.index(b"{") :].decode())
            if "error" in content:
                self._answer.error = str(content["error"])[:300]
                self._end(None)
            else:
                self._answer.tokens = int(content["usage"]["completion_tokens"])

    def _end(self, error: str | None) -> None:
        if self._over is not None and not self._over.done():
            self._answer.error = self._answer.error or error
            self._over.set_result(None)


async def run(orders: Orders) -> Found:
    """Send all groups. Streams that `stop_s` cuts off keep what they have, without an error."""
    start = time.perf_counter()
    cpu = time.process_time()
    found: list[list[Answer]] = [[Answer() for _ in group.bodies] for group in orders.groups]
    open_connections: set[Connection] = set()

    def clock() -> float:
        return time.perf_counter() - start

    async def connect() -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(clock), orders.host, orders.port)
        open_connections.add(connection)
        return connection

    tasks = [
        asyncio.create_task(_group(group, answers, orders, connect, clock))
        for group, answers in zip(orders.groups, found)
    ]
    _, late = await asyncio.wait(tasks, timeout=orders.stop_s)
    for task in late:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    seconds = clock()
    share = (time.process_time() - cpu) / seconds
    for connection in open_connections:
        connection.close()
    return Found(groups=found, seconds=seconds, cpu_share=share)


async def _group(
    group: Group,
    answers: list[Answer],
    orders: Orders,
    connect: Callable[[], Any],
    clock: Callable[[], float],
) -> None:
    requests = [encode(orders, body) for body in group.bodies]

    async def one(index: int, connection: Connection | None) -> Connection | None:
        try:
            if connection is None or not connection.usable:
                connection = await connect()
            await connection.ask(requests[index], answers[index])
        except OSError as error:
            answers[index].error = f"{type(error).__name__}: {error}"
        return connection

    async def in_turn() -> None:
        connection = None
        for index in order:
            connection = await one(index, connection)

    async def when_due(index: int) -> None:
        await asyncio.sleep(max(0.0, group.start_s + index * (group.every_s or 0.0) - clock()))
        await one(index, None)

    if group.every_s is not None:
        await asyncio.gather(*(when_due(index) for index in range(len(requests))))
        return
    order = iter(range(len(requests)))  # shared: each worker takes the next
    await asyncio.sleep(max(0.0, group.start_s - clock()))
    await asyncio.gather(*(in_turn() for _ in range(min(group.at_once, len(requests)))))


def encode(orders: Orders, body: dict[str, Any]) -> bytes:
    """A whole POST request."""
    content = msgspec.json.encode(body)
    head = (
        f"POST {orders.path} HTTP/1.1\r\nHost: {orders.host}:{orders.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def main() -> int:
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=Orders)
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        found = runner.run(run(orders))
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
