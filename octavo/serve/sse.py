"""Server-sent events over raw ASGI: one send a step of the engine, nothing built per token but the text itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.requests import ClientDisconnect

from octavo.serve.calls import Call
from octavo.serve.errors import Failure
from octavo.serve.http11 import CONNECTION

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE_S = 15.0  # proxies cut a connection on which nothing has come for a while, the shortest after 20 or 30 s
WAITING = b": waiting\n\n"  # a comment, which every reader of event streams passes over
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]


def event(payload: bytes) -> bytes:
    """One event. `payload` is JSON, in which a line break cannot stand."""
    return b"data: " + payload + b"\n\n"


def named_event(name: str, payload: bytes) -> bytes:
    """One event with a type of its own."""
    return b"event: " + name.encode() + b"\ndata: " + payload + b"\n\n"


class EventStream:
    """The answer to a call in events: any number of `write`, then `finish` or `fail`.

    The first of them sends status 200 and the headers that the call has gathered by then.
    """

    def __init__(self, call: Call) -> None:
        self._send = call.send
        self._headers = call.headers
        self._connection = call.scope.get("extensions", {}).get(CONNECTION)
        self._timeout_s = call.limits.send_timeout
        self.started = False
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()

    async def write(self, events: bytes) -> None:
        """Sends whole events. A client that reads nothing for too long is cut off: ClientDisconnect."""
        if not self.started:
            await self._start()
        message = {"type": "http.response.body", "body": events, "more_body": True}
        self._last = self._loop.time()
        if not self.paused:
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            self._connection["abort"]()
            await asyncio.sleep(0)  # lets the server see the loss before it sees us leave
            raise ClientDisconnect from None

    def open(self) -> bool:
        """Whether `write_now` may be called."""
        return self.started and self._connection is not None and not self._connection["paused"]()

    def write_now(self, events: bytes) -> None:
        """`write` for an `open` stream, from outside the task that answers."""
        self._last = self._loop.time()
        self._connection["write"](events)

    @property
    def paused(self) -> bool:
        """Whether the client reads more slowly than we write."""
        return self._connection is not None and self._connection["paused"]()

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Inside, a comment goes out whenever nothing else has for 15 seconds; the first one begins the answer."""
        keeper = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            keeper.cancel()

    async def _start(self) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *self._headers]})

    async def _keep(self) -> None:
        while True:
            left = self._last + KEEP_ALIVE_S - self._loop.time()
            if left > 0:
                await asyncio.sleep(left)
                continue
            self._last = self._loop.time()
            if self.paused:
                continue
            if not self.started:
                await self._start()
            await self._send({"type": "http.response.body", "body": WAITING, "more_body": True})

    async def finish(self, events: bytes = b"", end: bytes = DONE) -> None:
        """Sends the last events and, where the dialect has it, [DONE]."""
        if not self.started:
            await self._start()
        await self._send({"type": "http.response.body", "body": events + end})

    async def fail(self, failure: Failure) -> None:
        """One ``error`` event and the end, without [DONE]: a client must not take a part for the whole."""
        payload = msgspec.json.encode({"error": failure.error})
        body = b"event: error\n" + event(payload)
        await self._send({"type": "http.response.body", "body": body})
