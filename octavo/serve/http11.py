"""uvicorn's httptools protocol with bounds on what comes before the body, on those who do not read, on how many come.

uvicorn bounds neither headers nor the wait for them when it parses with httptools, nor the time for which a client may
leave an answer unread, so this class does.
"""

import asyncio
from functools import partial
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from octavo.base.config import LimitsConfig
from octavo.base.errors import UserError
from octavo.serve.connections import Connections
from octavo.serve.doors import DOOR
from octavo.serve.errors import failure

CONNECTION = "octavo.connection"  # key in scope["extensions"]: `abort()` without flushing, `paused()`, `write(part)`


class _Refused(UserError):
    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message, code=code)
        self.status = status


_TOO_LONG_URL = (414, "The URL is too long.", "uri_too_long")
_TOO_BIG_HEAD = (431, "The request headers are too large.", "headers_too_large")
_SLOW_HEAD = (408, "The request headers took too long.", "request_timeout")
_TOO_MANY = (503, "The server has too many connections.", "too_many_connections")
_MALFORMED = (400, "This is not a valid HTTP request.", "bad_request")


class BoundedHttp(HttpToolsProtocol):
    """One connection. A head that is too big or too slow is answered and closed before any handler runs."""

    bounds = LimitsConfig()
    book = Connections(bounds)
    inside = False  # the operator's door, which is never full

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_head = True
        self._head_bytes = 0
        self._refusal = _MALFORMED
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if not self.inside and not self.book.enter(self, self._address):
            self._refuse(*_TOO_MANY)
            self._watch_unread()
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._all_read()
        self.book.leave(self, self._address)
        super().connection_lost(exc)

    def leave(self) -> None:
        """Make room for another connection: this one has nothing to do."""
        self.transport.close()
        self._watch_unread()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._all_read()  # an older wait for a smaller rest
        self._watch_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._all_read()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self.book.idle(self)
        if self.transport.get_write_buffer_size():
            self._watch_unread()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.bounds.max_header_bytes and not self.transport.is_closing():
            self._refuse(*_TOO_BIG_HEAD)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: {"abort": self.transport.abort, "paused": self._write_paused}}
        if self.inside:
            self.scope["extensions"][DOOR] = {}
        self._in_head = True
        self._arm()

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > self.bounds.max_url_bytes:
            self._raise(_TOO_LONG_URL)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.bounds.max_headers or len(name) + len(value) > self.bounds.max_header_bytes:
            self._raise(_TOO_BIG_HEAD)

    def on_headers_complete(self) -> None:
        self._disarm()
        self._in_head = False
        self._head_bytes = 0
        if sum(len(name) + len(value) for name, value in self.headers) > self.bounds.max_header_bytes:
            self._raise(_TOO_BIG_HEAD)
        self.book.busy(self)
        super().on_headers_complete()
        self.scope["extensions"][CONNECTION]["write"] = partial(_write_part, self.cycle)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        self._refuse(*self._refusal)

    def _raise(self, refusal: tuple[int, str, str]) -> None:
        """Stops the parser; uvicorn then calls send_400_response."""
        self._refusal = refusal
        raise ValueError(refusal[2])

    def _refuse(self, status: int, message: str, code: str) -> None:
        body = failure(_Refused(status, message, code)).body
        later = b"retry-after: 1\r\n" if status == 503 else b""
        head = later + b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._disarm()
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or self.pipeline:
                self.transport.abort()  # an answer is under way; a second one would land inside it
                return
            self.cycle.disconnected = True  # its body cannot be read on: whoever waits for it is told so
            self.cycle.message_event.set()
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _watch_unread(self) -> None:
        """From now on the client has `send_timeout` to read what waits for it."""
        if self._unread is None:
            self._unread = self.loop.call_later(self.bounds.send_timeout, self._still_unread)

    def _all_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _still_unread(self) -> None:
        self._unread = None
        if self.flow.write_paused or (self.transport.is_closing() and self.transport.get_write_buffer_size()):
            self.transport.abort()
        elif self.transport.get_write_buffer_size():
            self._watch_unread()

    def _write_paused(self) -> bool:
        return self.flow.write_paused

    def _arm(self) -> None:
        self._disarm()
        self._timer = self.loop.call_later(self.bounds.header_timeout, self._head_timeout)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_timeout(self) -> None:
        if self.transport.is_closing():
            return
        if self._head_bytes:
            self._refuse(*_SLOW_HEAD)
        else:
            self.transport.close()


def _write_part(cycle: RequestResponseCycle, part: bytes) -> bool:
    """Write part of a body as the cycle's `send` does, at once. False: it takes no part now."""
    if not (cycle.response_started and cycle.chunked_encoding) or cycle.response_complete or cycle.flow.write_paused:
        return False
    if not cycle.disconnected:
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
    return True


def bounded_by(bounds: LimitsConfig, book: Connections, *, inside: bool = False) -> type[BoundedHttp]:
    """The protocol with these limits; uvicorn makes one object a connection from the class it is given."""
    return type("BoundedHttp", (BoundedHttp,), {"bounds": bounds, "book": book, "inside": inside})
