"""Server-sent events over raw ASGI: one send a step of the engine, nothing built per token but the text itself."""

import asyncio
from collections.abc import Iterable

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Scope, Send

from octavo.serve.errors import Failure
from octavo.serve.http11 import CONNECTION

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]


def event(payload: bytes) -> bytes:
    """One event. `payload` is JSON, in which a line break cannot stand."""
    return b"data: " + payload + b"\n\n"


class EventStream:
    """An answer in events. `start`, any number of `write`, then `finish` or `fail`."""

    def __init__(self, scope: Scope, send: Send, send_timeout_s: float) -> None:
        self._send = send
        self._connection = scope.get("extensions", {}).get(CONNECTION)
        self._timeout_s = send_timeout_s
        self.started = False

    async def start(self, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Sends status 200 and the headers."""
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *extra]})

    async def write(self, events: bytes) -> None:
        """Sends whole events. A client that reads nothing for too long is cut off: ClientDisconnect."""
        message = {"type": "http.response.body", "body": events, "more_body": True}
        if self._connection is None or not self._connection["paused"]():
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            self._connection["abort"]()
            await asyncio.sleep(0)  # lets the server see the loss before it sees us leave
            raise ClientDisconnect from None

    async def finish(self, events: bytes = b"") -> None:
        """Sends the last events and [DONE]."""
        await self._send({"type": "http.response.body", "body": events + DONE})

    async def fail(self, failure: Failure) -> None:
        """One ``error`` event and the end, without [DONE]: a client must not take a part for the whole."""
        payload = msgspec.json.encode({"error": failure.error})
        body = b"event: error\n" + event(payload)
        await self._send({"type": "http.response.body", "body": body})
