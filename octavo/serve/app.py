"""The table of routes and the one path every request takes: id, route, key, handler, error, count."""

import logging
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Send
from starlette.types import Scope as AsgiScope

from octavo.base.errors import OctavoError
from octavo.serve import probes
from octavo.serve.auth import Guard, Scope
from octavo.serve.calls import Call, Handler, Header, Reply, Service
from octavo.serve.errors import failure, send_failure
from octavo.serve.openai import chat, completions, models, tokenize

log = logging.getLogger("octavo.serve")

_SAFE_ID = re.compile(r"[A-Za-z0-9_.:\-]+")
_SECURITY = ((b"x-content-type-options", b"nosniff"),)


@dataclass(frozen=True)
class Endpoint:
    """One line of the table. `scope` has no default: a route cannot forget to say who may call it."""

    path: str
    methods: tuple[str, ...]
    scope: Scope
    handler: Handler


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("/v1/chat/completions", ("POST",), Scope.USE, chat.create),
    Endpoint("/v1/completions", ("POST",), Scope.USE, completions.create),
    Endpoint("/v1/models", ("GET",), Scope.USE, models.index),
    Endpoint("/v1/models/{model:path}", ("GET",), Scope.USE, models.show),
    Endpoint("/tokenize", ("POST",), Scope.USE, tokenize.tokenize),
    Endpoint("/detokenize", ("POST",), Scope.USE, tokenize.detokenize),
    Endpoint("/metrics", ("GET",), Scope.USE, probes.metrics),
    Endpoint("/version", ("GET",), Scope.USE, probes.version),
    Endpoint("/ping", ("GET", "POST"), Scope.USE, probes.health),
    Endpoint("/health", ("GET",), Scope.OPEN, probes.health),
    Endpoint("/ready", ("GET",), Scope.OPEN, probes.ready),
    Endpoint("/", ("GET",), Scope.OPEN, probes.page),
)


class App:
    """The ASGI application."""

    def __init__(self, service: Service, endpoints: Sequence[Endpoint] = ENDPOINTS) -> None:
        """Raises ConfigError for keys that would let anyone in."""
        self.service = service
        serve = service.config.serve
        self._max_id_chars = serve.limits.max_request_id_chars
        self._guard = Guard(serve.api_key, serve.host)
        self._routes = [(self._route(endpoint), endpoint) for endpoint in endpoints]

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        start = time.monotonic()
        answer = _Answer(send, _request_id(scope, self._max_id_chars))
        route, status = "other", 499  # 499: the client left before an answer began
        try:
            endpoint = self._match(scope)
            route = endpoint.path
            tenant = self._guard.check(endpoint.scope, scope)
            call = Call(self.service, scope, receive, answer.send, answer.request_id, tenant, arrival=start)
            reply = await endpoint.handler(call)
            if reply is not None:
                await _send_reply(answer.send, reply, call.headers)
        except ClientDisconnect:
            pass
        except Exception as exc:
            await self._fail(answer, exc)
        finally:
            status, seconds = answer.status or status, time.monotonic() - start
            self.service.metrics.http(route, scope["method"], status, seconds)
            log.debug("%s %d in %.3f s, request %s", route, status, seconds, answer.request_id)

    @staticmethod
    def _route(endpoint: Endpoint) -> Route:
        return Route(endpoint.path, endpoint=_unused, methods=list(endpoint.methods))

    def _match(self, scope: AsgiScope) -> Endpoint:
        """The endpoint, its path parameters left in `scope`. HTTPException 404 or 405."""
        partial: Route | None = None
        for route, endpoint in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                scope["path_params"] = child["path_params"]
                return endpoint
            if match is Match.PARTIAL:
                partial = route
        if partial is not None:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(partial.methods or ()))})
        raise HTTPException(404)

    async def _fail(self, answer: "_Answer", exc: Exception) -> None:
        fail = failure(exc)
        if isinstance(exc, OctavoError):  # the engine has logged its own faults
            log.debug("request %s: %s %s", answer.request_id, fail.status, fail.error.code)
        elif fail.status >= 500:
            log.error("request %s failed", answer.request_id, exc_info=exc)
        if answer.status:
            raise exc  # the answer has begun; the server cuts the connection
        await send_failure(answer.send, fail)


class _Answer:
    """Adds the headers every answer has and remembers the status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[Header] = [*message.get("headers", ()), *_SECURITY]
            headers.append((b"x-request-id", self.request_id.encode()))
            message = {**message, "headers": headers}
        await self._send(message)


async def _send_reply(send: Send, reply: Reply, extra: Sequence[Header]) -> None:
    headers = [
        (b"content-type", reply.kind),
        (b"content-length", str(len(reply.body)).encode()),
        *reply.headers,
        *extra,
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def _request_id(scope: AsgiScope, max_chars: int) -> str:
    """The caller's id if it is safe to log and echo, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = value.decode("latin-1")
            if len(given) <= max_chars and _SAFE_ID.fullmatch(given):
                return str(given)
    return uuid.uuid4().hex


async def _unused(_: Any) -> Any:
    raise NotImplementedError("routes only match; App calls the handlers")
