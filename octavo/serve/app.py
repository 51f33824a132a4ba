"""The one path every request takes: id, route, key, handler, error, count."""

import logging
import re
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Send
from starlette.types import Scope as AsgiScope

from octavo.base.errors import OctavoError, UserError
from octavo.base.log import REQUEST_ID
from octavo.serve.auth import Guard, Scope
from octavo.serve.calls import Call, Endpoint, Header, Reply, Service
from octavo.serve.cors import Cors, check_origins
from octavo.serve.doors import DOOR
from octavo.serve.errors import Envelope, failure, openai_envelope
from octavo.serve.journey import Journey
from octavo.serve.query import header
from octavo.serve.quota import Meter
from octavo.serve.table import ENDPOINTS

log = logging.getLogger("octavo.serve")

Routes = Sequence[tuple[Route, Endpoint]]
INSIDE = frozenset({Scope.OPEN, Scope.METRICS, Scope.ADMIN})

_SAFE_ID = re.compile(r"[A-Za-z0-9_.:\-]+")
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")
_SECURITY = ((b"x-content-type-options", b"nosniff"),)


class App:
    """The ASGI application. Through the operator's door it answers what operators ask, and nothing else."""

    def __init__(self, service: Service, endpoints: Sequence[Endpoint] = ENDPOINTS) -> None:
        """Raises ConfigError for keys that would let anyone in."""
        self.service = service
        service.endpoints = endpoints
        serve = service.config.serve
        self._max_id_chars = serve.limits.max_request_id_chars
        self._guard = Guard(
            service.keys,
            serve.host,
            insecure=serve.insecure,
            open_docs=serve.public_docs,
            origins=serve.allowed_origins,
        )
        check_origins(serve.allowed_origins)
        self._cors = Cors(self._guard.allows) if serve.allowed_origins else None
        routes = [(self._route(endpoint), endpoint) for endpoint in endpoints]
        outside = frozenset(Scope) if serve.admin_port is None else frozenset(Scope) - {Scope.ADMIN}
        self._outside = [entry for entry in routes if entry[1].scope in outside]
        self._inside = [entry for entry in routes if entry[1].scope in INSIDE]

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        journey = Journey()
        inside = DOOR in scope.get("extensions", ())
        allowed = None if inside else self._cors
        cors = allowed.headers(scope) if allowed else ()
        answer = _Answer(send, _request_id(scope, self._max_id_chars), cors)
        running = REQUEST_ID.set(answer.request_id)
        route, status = "other", 499  # 499: the client left before an answer began
        meter: Meter | None = None
        envelope: Envelope = openai_envelope
        try:
            if allowed and allowed.is_preflight(scope):
                await _send_reply(answer.send, allowed.preflight(self._methods(scope)), ())
                return
            endpoint = self._match(scope, self._inside if inside else self._outside)
            route, envelope = endpoint.path, endpoint.envelope
            caller = self._guard.check(endpoint.scope, scope, inside=inside)
            meter = self.service.quotas.meter(caller)
            journey.key = caller.tenant
            call = Call(
                self.service,
                scope,
                receive,
                answer.send,
                answer.request_id,
                caller.tenant,
                arrival=journey.arrival,
                owner=caller.owner,
                meter=meter,
                timeout_s=_wanted_timeout(scope),
                journey=journey,
            )
            reply = await endpoint.handler(call)
            if reply is not None:
                await _send_reply(answer.send, reply, call.headers)
        except ClientDisconnect:
            pass
        except Exception as exc:
            await self._fail(answer, exc, envelope, journey)
        finally:
            if meter is not None:
                meter.end()
            self.service.recorder.over(scope, answer.request_id, route, answer.status or status, journey)
            REQUEST_ID.reset(running)

    @staticmethod
    def _route(endpoint: Endpoint) -> Route:
        return Route(endpoint.path, endpoint=_unused, methods=list(endpoint.methods))

    @staticmethod
    def _match(scope: AsgiScope, routes: "Routes") -> Endpoint:
        """The endpoint, its path parameters left in `scope`. HTTPException 404 or 405."""
        partial: Route | None = None
        for route, endpoint in routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                scope["path_params"] = child["path_params"]
                return endpoint
            if match is Match.PARTIAL:
                partial = route
        if partial is not None:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(partial.methods or ()))})
        raise HTTPException(404)

    def _methods(self, scope: AsgiScope) -> list[str]:
        """What the path answers to, whatever the method asked with."""
        return sorted(
            {
                method
                for route, each in self._outside
                if route.matches(scope)[0] is not Match.NONE
                for method in each.methods
            }
        )

    async def _fail(self, answer: "_Answer", exc: Exception, envelope: Envelope, journey: Journey) -> None:
        fail = failure(exc)
        journey.code = fail.error.code or fail.error.type
        if isinstance(exc, OctavoError):  # the engine has logged its own faults
            log.debug("request %s: %s %s", answer.request_id, fail.status, fail.error.code)
        elif fail.status >= 500:
            log.error("request %s failed", answer.request_id, exc_info=exc)
        if answer.status:
            raise exc  # the answer has begun; the server cuts the connection
        reply = Reply(envelope(fail, answer.request_id), fail.status, headers=fail.headers)
        await _send_reply(answer.send, reply, ())


class _Answer:
    """Adds the headers every answer has and remembers the status."""

    def __init__(self, send: Send, request_id: str, extra: Sequence[Header]) -> None:
        self._send = send
        self._extra = extra
        self.request_id = request_id
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[Header] = [*message.get("headers", ()), *_SECURITY, *self._extra]
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
    given = header(scope, b"x-request-id") or ""
    return given if len(given) <= max_chars and _SAFE_ID.fullmatch(given) else uuid.uuid4().hex


def _wanted_timeout(scope: AsgiScope) -> float | None:
    """Seconds from ``X-Request-Timeout``. The ``x-stainless-timeout`` of OpenAI's client is passed over: it says how
    long that client will wait for bytes, and the client leaves by itself when it has waited so long."""
    given = header(scope, b"x-request-timeout")
    if given is None:
        return None
    text = given.strip()
    if not _SECONDS.fullmatch(text) or float(text) <= 0:
        raise UserError("X-Request-Timeout is a number of seconds above 0.", param="X-Request-Timeout")
    return float(text)


async def _unused(_: Any) -> Any:
    raise NotImplementedError("routes only match; App calls the handlers")
