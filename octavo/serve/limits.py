"""What one client may take: body bytes, time to send them, memory for bodies, open requests."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from octavo.base.clock import SystemClock
from octavo.base.config import ServeConfig
from octavo.base.errors import Overloaded, TooLarge, UserError
from octavo.base.rate import ROOM_SHARE, Rate
from octavo.serve.errors import TooSlow, WrongType

BODY_GRACE_S = 10.0  # a body may take this long, plus its size at the least rate
SMALL_BODY = 64 << 10  # up to here a body counts nothing against the budget


class Limits:
    """Counts of the whole server, checked before memory or engine time is spent."""

    def __init__(self, serve: ServeConfig, max_open: int) -> None:
        """`max_open`: sequences that may run or wait at once."""
        self.max_body_bytes = serve.max_body_bytes
        self.max_open = max_open
        self.open = 0
        self._gap_s = serve.limits.body_gap_timeout
        self._min_rate = serve.limits.min_body_rate
        self._body_budget = max(256 << 20, 4 * serve.max_body_bytes)
        self._body_bytes = 0
        self._ends = Rate(SystemClock())

    def check_room(self) -> None:
        """Overloaded when nothing more would be admitted: asked before a prompt is tokenized."""
        if self.open >= self.max_open:
            raise self._full()

    def _full(self) -> Overloaded:
        wait_s = self._ends.wait_s(ROOM_SHARE * self.open)
        return Overloaded("The server is full. Try again later.", retry_after_s=wait_s)

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Counts `size` bytes of a body against the budget while they are worked on."""
        self._charge(size if size > SMALL_BODY else 0)
        try:
            yield
        finally:
            self._body_bytes -= size if size > SMALL_BODY else 0

    def _charge(self, size: int) -> None:
        if size and self._body_bytes + size > self._body_budget:
            raise Overloaded("The server works on too many large requests. Try again later.")
        self._body_bytes += size

    @contextmanager
    def admitted(self, count: int) -> Iterator[None]:
        """Holds `count` sequences of room. Overloaded when the server has enough to do."""
        if self.open + count > self.max_open:
            raise self._full()
        self.open += count
        try:
            yield
        finally:
            self.open -= count
            self._ends.note(count)

    async def read_body(self, scope: Scope, receive: Receive) -> bytes:
        """The JSON body. TooLarge while reading, TooSlow by total time or by silence, WrongType by its header."""
        length = check_headers(scope)
        if length is not None and length > self.max_body_bytes:
            raise too_large(self.max_body_bytes)
        size, charged = 0, 0
        parts: list[bytes] = []
        try:
            async for part in self.body_parts(receive, self.max_body_bytes):
                size += len(part)
                if size > SMALL_BODY:
                    self._charge(size - charged)
                    charged = size
                parts.append(part)
            return b"".join(parts)
        finally:
            self._body_bytes -= charged

    async def body_parts(self, receive: Receive, max_bytes: int) -> AsyncIterator[bytes]:
        """A body as it comes. TooLarge, or TooSlow by total time or by silence."""
        loop = asyncio.get_running_loop()
        start, size, more = loop.time(), 0, True
        while more:
            left = min(self._gap_s, start + BODY_GRACE_S + size / self._min_rate - loop.time())
            message = await _receive(receive, left)
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > max_bytes:
                raise too_large(max_bytes)
            more = message.get("more_body", False)
            yield part


def too_large(max_bytes: int) -> TooLarge:
    """For a body beyond its limit."""
    return TooLarge(f"The body may have at most {max_bytes} bytes.", code="body_too_large")


def check_headers(scope: Scope) -> int | None:
    """The declared length. WrongType unless the body is plain JSON."""
    kind, length = b"", None
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind = value
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise WrongType("A compressed body is not accepted.", code="unsupported_media_type")
        elif name == b"content-length":
            length = int(value.lstrip(b"0")[:20] or b"0")  # the parser lets nothing but digits through
    media, _, options = kind.partition(b";")
    charset = options.strip().lower().replace(b'"', b"").replace(b" ", b"")
    if media.strip().lower() != b"application/json" or charset not in (b"", b"charset=utf-8", b"charset=utf8"):
        raise WrongType("Send the header Content-Type: application/json.", code="unsupported_media_type")
    return length


async def _receive(receive: Receive, seconds: float) -> Message:
    try:
        async with asyncio.timeout(max(seconds, 0.0)):
            message: Message = await receive()
    except TimeoutError:
        raise TooSlow("The body took too long to arrive.", code="request_timeout") from None
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    if message["type"] != "http.request":
        raise UserError("Unexpected message.")
    return message
