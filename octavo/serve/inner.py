"""One endpoint asks another of the same server, without a socket: same checks, same limits, same errors.

The Responses API, the Anthropic API and batches are other ways to say what chat completions say. They turn their
request into a chat body and are told the steps of chat's answer, so whatever chat learns (tools, reasoning, structured
output), they know too.
"""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
from starlette.types import Message, Receive

from octavo.base.errors import OctavoError, Unavailable
from octavo.serve.calls import Call, Handler, Reply
from octavo.serve.errors import failure
from octavo.serve.turns import Listener

_SCOPE = {
    "type": "http",
    "method": "POST",
    "headers": [(b"content-type", b"application/json")],
    "query_string": b"",
    "path_params": {},
    "extensions": {},
}


async def tell(outer: Call, handler: Handler, body: bytes, listener: Listener) -> None:
    """Has `listener` told what `handler`, a chat, answers to `body`. Raises what the handler raises."""
    await handler(replace(_inner(outer, body), listener=listener))


async def whole(outer: Call, handler: Handler, body: bytes) -> Reply:
    """What `handler` answers to `body`, errors as OpenAI's error objects. Raises only for a client that left."""
    try:
        reply = await handler(_inner(outer, body))
    except (OctavoError, msgspec.DecodeError, UnicodeError) as exc:
        fail = failure(exc)
        return Reply(fail.body, fail.status, headers=fail.headers)
    if reply is None:
        raise Unavailable("The endpoint streamed.")
    return reply


async def ask(outer: Call, handler: Handler, body: bytes) -> Any:
    """The decoded answer to `body`. Raises what the handler raises."""
    reply = await handler(_inner(outer, body))
    return msgspec.json.decode(reply.body) if reply is not None else None


async def never() -> Message:
    """The receive of a job: its client cannot leave."""
    await asyncio.Event().wait()
    raise AssertionError("nothing wakes this")


def _inner(outer: Call, body: bytes) -> Call:
    return replace(outer, scope=_SCOPE, receive=_Body(body, outer.receive), send=_nowhere, body_bytes=0)


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
