"""uvicorn's httptools protocol with bounds on what comes before the body, on those who do not read, on how many come.

uvicorn bounds neither headers nor the wait for them when it parses with httptools, nor the time for which a client may
leave an answer unread, so this class does.
"""

import asyncio
import weakref
from collections import deque
from functools import partial
from typing import Any

import httptools
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
_OTHER_VERSION = (400, "HTTP/1.0 and HTTP/1.1 are spoken here.", "bad_request")

LINGER_S = 2.0  # for a client to stop sending once it has its answer
_FRAMING = (b"content-length", b"transfer-encoding")


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
        self._lingering: asyncio.TimerHandle | None = None
        self._open: deque[RequestResponseCycle] = deque()  # not answered yet, in the order they came
        self._again = False  # a second parser is given the head that the first one has read
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
        if self._lingering is not None:
            self._lingering.cancel()
        self.book.leave(self, self._address)
        for cycle in self._open:  # uvicorn tells the one that came last, which may still wait behind another
            cycle.disconnected = True
            cycle.message_event.set()
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
        self._open.popleft()
        if not self.pipeline:
            self.book.idle(self)
        if self.transport.get_write_buffer_size():
            self._watch_unread()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            return
        if self._in_head:
            self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._in_head and self._head_bytes > self.bounds.max_header_bytes:
            self._refuse(*_TOO_BIG_HEAD)

    def _feed(self, data: bytes) -> None:
        """To the parser. It stops behind the head of a request that asks for an upgrade; nobody is upgraded here."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self._body_skipped():
                    self._read_body()
            except httptools.HttpParserError:
                self._refuse(*self._refusal)
                return

    def _body_skipped(self) -> bool:
        return self.parser.should_upgrade() and any(name in _FRAMING for name, _ in self.headers)

    def _read_body(self) -> None:
        """The parser would take the body of a request that asks for an upgrade for the next request. Another one reads
        it, behind a head that does not ask."""
        framing = b"".join(b"%b: %b\r\n" % pair for pair in self.headers if pair[0] in _FRAMING)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._again = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)

    def on_message_begin(self) -> None:
        if self._again:
            return
        super().on_message_begin()
        paused = partial(getattr, self.flow, "write_paused")
        self.scope["extensions"] = {CONNECTION: {"abort": self.transport.abort, "paused": paused}}
        if self.inside:
            self.scope["extensions"][DOOR] = {}
        self._in_head = True
        self._arm()

    def on_url(self, url: bytes) -> None:
        if self._again:
            return
        if len(self.url) + len(url) > self.bounds.max_url_bytes:
            self._raise(_TOO_LONG_URL)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._again:
            return
        super().on_header(name, value)
        if len(self.headers) > self.bounds.max_headers or len(name) + len(value) > self.bounds.max_header_bytes:
            self._raise(_TOO_BIG_HEAD)

    def on_headers_complete(self) -> None:
        if self._again:
            self._again = False
            return
        self._disarm()
        self._in_head = False
        self._head_bytes = 0
        if sum(len(name) + len(value) for name, value in self.headers) > self.bounds.max_header_bytes:
            self._raise(_TOO_BIG_HEAD)
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self._raise(_OTHER_VERSION)
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            self._raise(_MALFORMED)
        self.book.busy(self)
        self.scope["headers"] = self.headers.copy()  # the parser adds what trails a body: no header of the request
        super().on_headers_complete()
        self._open.append(self.cycle)
        self.cycle.transport = _Answering(self, self.cycle)  # type: ignore[assignment]
        self.scope["extensions"][CONNECTION]["write"] = partial(_write_part, weakref.ref(self.cycle))

    def on_message_complete(self) -> None:
        if not self._body_skipped():
            super().on_message_complete()

    def _raise(self, refusal: tuple[int, str, str]) -> None:
        """Stops the parser, whose caller then refuses."""
        self._refusal = refusal
        raise ValueError(refusal[2])

    def _refuse(self, status: int, message: str, code: str) -> None:
        if self._lingering is not None or self.transport.is_closing():
            return
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
        if status == 503:
            self.transport.close()  # there is no room for it to stay
        else:
            self.linger()

    def linger(self) -> None:
        """Closes once the client has stopped sending, and until then drops what it sends: closing over bytes that
        nobody has read would reset the connection, and often take the answer away before it is read."""
        self._lingering = self.loop.call_later(LINGER_S, self.transport.close)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

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


class _Answering:
    """A connection as one request's cycle sees it. It keeps neither alive: a request that is over must be gone then,
    not wait for a collector that would find thousands of them, and whose next one finds more than the last."""

    def __init__(self, connection: BoundedHttp, cycle: RequestResponseCycle) -> None:
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing
        self._transport = connection.transport
        self._connection = weakref.ref(connection)
        self._cycle = weakref.ref(cycle)

    def close(self) -> None:
        """When the answer is whole; part of the request may be on its way still."""
        connection, cycle = self._connection(), self._cycle()
        if connection and cycle and cycle.more_body and not self.is_closing():
            connection.linger()
        else:
            self._transport.close()


def _write_part(ref: "weakref.ref[RequestResponseCycle]", part: bytes) -> bool:
    """Write part of a body as the cycle's `send` does, at once. False: it takes no part now."""
    cycle = ref()
    if cycle is None or not (cycle.response_started and cycle.chunked_encoding):
        return False
    if cycle.response_complete or cycle.flow.write_paused:
        return False
    if not cycle.disconnected:
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
    return True


def bounded_by(bounds: LimitsConfig, book: Connections, *, inside: bool = False) -> type[BoundedHttp]:
    """The protocol with these limits; uvicorn makes one object a connection from the class it is given."""
    return type("BoundedHttp", (BoundedHttp,), {"bounds": bounds, "book": book, "inside": inside})
