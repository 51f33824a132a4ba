"""Server-sent events over raw ASGI: one send a step of the engine, nothing built per token but the text itself."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.requests import ClientDisconnect

from octavo.base.errors import OctavoError
from octavo.serve.calls import Call
from octavo.serve.errors import Failure, failure
from octavo.serve.http11 import CONNECTION

log = logging.getLogger("octavo.serve")

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

    def __init__(self, call: Call, idle: bytes = WAITING) -> None:
        """`idle`: what goes out while nothing else does."""
        self._call = call
        self._idle = idle
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
        """Inside, `idle` goes out whenever nothing else has for 15 seconds; the first one begins the answer."""
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
            await self._send({"type": "http.response.body", "body": self._idle, "more_body": True})

    async def finish(self, events: bytes = b"", end: bytes = DONE) -> None:
        """Sends the last events and, where the dialect has it, [DONE]."""
        if not self.started:
            await self._start()
        await self._send({"type": "http.response.body", "body": events + end})

    def fault(self, exc: Exception) -> Failure:
        """What an answer that has begun says of `exc`. Raises it where none has, and for a client that left."""
        if not self.started or isinstance(exc, ClientDisconnect):
            try:
                raise exc
            finally:
                del exc  # the traceback holds this frame, which would hold the exception
        if not isinstance(exc, OctavoError):
            log.error("request %s failed in its stream", self._call.request_id, exc_info=exc)
        fail = failure(exc)
        self._call.journey.code = fail.error.code or fail.error.type
        return fail

    async def fail(self, fail: Failure) -> None:
        """One ``error`` event and the end, without [DONE]: a client must not take a part for the whole."""
        payload = msgspec.json.encode({"error": fail.error})
        body = b"event: error\n" + event(payload)
        await self._send({"type": "http.response.body", "body": body})
