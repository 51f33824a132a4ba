"""One endpoint asks another of the same server, without a socket: same checks, same limits, same errors.

The Responses API, the Anthropic API and batches are other ways to say what chat completions say. They turn their
request into a chat body and read chat's chunks, so whatever chat learns (tools, reasoning, structured output), they
know too. The cost is one JSON object more a step.
"""

import asyncio
from dataclasses import replace
from typing import Any, Protocol

import msgspec
from starlette.types import Message, Receive

from octavo.base.errors import OctavoError, Unavailable
from octavo.serve.calls import Call, Handler, Reply
from octavo.serve.errors import DeadlineExceeded, ErrorDetail, failure, from_status

_SCOPE = {
    "type": "http",
    "method": "POST",
    "headers": [(b"content-type", b"application/json")],
    "query_string": b"",
    "path_params": {},
    "extensions": {},
}


class Sink(Protocol):
    """Takes what a streaming endpoint says."""

    async def data(self, payload: bytes) -> None:
        """One event's JSON."""
        ...

    async def idle(self) -> None:
        """Nothing has come for a while."""
        ...

    async def error(self, error: ErrorDetail) -> None:
        """The stream has failed; nothing follows."""
        ...


class _ErrorEvent(msgspec.Struct):
    error: ErrorDetail


_ERROR = msgspec.json.Decoder(_ErrorEvent)


async def stream(outer: Call, handler: Handler, body: bytes, sink: Sink) -> None:
    """Feeds `sink` with the events that `handler` makes of `body`, which must ask for a stream.

    Raises what the handler raises before its first event.
    """

    async def send(message: Message) -> None:
        events = message.get("body", b"")
        for event in events.split(b"\n\n") if events else ():
            await _deliver(event, sink)

    reply = await handler(_inner(outer, body, send))
    if reply is not None:
        raise OctavoError("the endpoint did not stream")


async def _deliver(event: bytes, sink: Sink) -> None:
    if event.startswith(b"data: "):
        if event != b"data: [DONE]":
            await sink.data(event[6:])
    elif event.startswith(b"event: error\ndata: "):
        await sink.error(_ERROR.decode(event.removeprefix(b"event: error\ndata: ")).error)
    elif event.startswith(b":"):
        await sink.idle()


async def whole(outer: Call, handler: Handler, body: bytes) -> Reply:
    """What `handler` answers to `body`, errors as OpenAI's error objects. Raises only for a client that left."""
    try:
        reply = await handler(_inner(outer, body, _nowhere))
    except (OctavoError, msgspec.DecodeError, UnicodeError) as exc:
        fail = failure(exc)
        return Reply(fail.body, fail.status, headers=fail.headers)
    if reply is None:
        raise Unavailable("The endpoint streamed.")
    return reply


async def ask(outer: Call, handler: Handler, body: dict[str, Any]) -> Any:
    """The decoded answer to `body`. Raises what the handler raises."""
    reply = await handler(_inner(outer, msgspec.json.encode(body), _nowhere))
    return msgspec.json.decode(reply.body) if reply is not None else None


def raised(error: ErrorDetail) -> OctavoError:
    """The exception for an error that came as an event."""
    if error.type == DeadlineExceeded.kind:
        return DeadlineExceeded(error.message, code=error.code)
    statuses = {"rate_limit_error": 429, "service_unavailable_error": 503, "invalid_request_error": 400}
    return from_status(statuses.get(error.type, 500), error.message, error.param, error.code)


async def never() -> Message:
    """The receive of a job: its client cannot leave."""
    await asyncio.Event().wait()
    raise AssertionError("nothing wakes this")


def _inner(outer: Call, body: bytes, send: Any) -> Call:
    return replace(outer, scope=_SCOPE, receive=_Body(body, outer.receive), send=send, body_bytes=0)


async def _nowhere(message: Message) -> None:
    if message["type"] == "http.response.start":
        raise OctavoError("the endpoint streamed")


class _Body:
    """A receive that gives the body first, then what the outer client does."""

    def __init__(self, body: bytes, after: Receive) -> None:
        self._body: bytes | None = body
        self._after = after

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._after()
