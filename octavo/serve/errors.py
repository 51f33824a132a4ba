"""Every way a request can fail, as an OpenAI error object: ``{"error": {message, type, param, code}}``.

Text comes from a fixed catalogue or from a UserError, which quotes at most a few characters of input; paths,
tracebacks and addresses never reach a client.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException

from octavo.base.errors import EngineDead, NotFound, OctavoError, Overloaded, TooLarge, Unavailable, UserError, missing

MAX_MESSAGE_CHARS = 400  # at most 4 bytes each in UTF-8; messages quote input only in part
INTERNAL_TEXT = "The server could not finish this request. The fault is not in the request; it may be sent again."


class Unauthorized(UserError):
    """No key, or a wrong one."""

    status = 401
    kind = "authentication_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key")


class Forbidden(UserError):
    """A caller that may not be here whatever its key: another web site, a foreign host name."""

    status = 403
    kind = "permission_error"


class TooSlow(UserError):
    """The client did not send its request in time."""

    status = 408


class DeadlineExceeded(UserError):
    """The request ran longer than it or the server allows; the same one again would do so too."""

    status = 504
    kind = "timeout_error"


class RateLimited(Overloaded):
    """This key has had its share of the minute, or has too many requests open; others may be served."""

    def __init__(self, message: str, retry_after_s: float, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.code = "rate_limit_exceeded"
        self.headers = headers


class WrongType(UserError):
    """The body is not announced as plain JSON."""

    status = 415


class ErrorDetail(Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(Struct, frozen=True):
    """An error ready to be sent: HTTP status, headers beyond the content type, and the body's object."""

    status: int
    error: ErrorDetail
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def body(self) -> bytes:
        """The JSON to send."""
        return msgspec.json.encode({"error": self.error})


_HTTP_CODES = {
    404: ("not_found_error", "not_found", "There is no such path."),
    405: ("invalid_request_error", "method_not_allowed", "This path does not answer to that method."),
}

_STATUS_KINDS: dict[int, type[UserError]] = {
    404: NotFound,
    408: TooSlow,
    413: TooLarge,
    429: Overloaded,
    503: Unavailable,
}


def failure(exc: BaseException) -> Failure:
    """What a client is told about `exc`. Anything not raised on purpose is a 500 with a fixed text."""
    if isinstance(exc, msgspec.DecodeError):
        exc = invalid_json(exc)
    if isinstance(exc, HTTPException):
        return _from_http(exc)
    if isinstance(exc, EngineDead):
        exc = Unavailable("The engine is not running.")
    if isinstance(exc, UserError):
        detail = ErrorDetail(_clip(exc.message), exc.kind, exc.param, exc.code)
        return Failure(exc.status, detail, _headers(exc))
    return Failure(500, ErrorDetail(INTERNAL_TEXT, "internal_error", None, "internal_error"))


def from_status(
    status: int, message: str, param: str | None = None, code: str | None = None, retry_after_s: float = 0.0
) -> OctavoError:
    """The exception for an error the engine reports by status, catalogue text, field, short word and time to wait."""
    kind = _STATUS_KINDS.get(status)
    if kind is None and not 400 <= status < 500:
        return OctavoError(message)
    error = (kind or UserError)(message)
    error.param, error.code = param, code or error.code
    if retry_after_s and isinstance(error, Overloaded | Unavailable):
        error.retry_after_s = retry_after_s
    return error


def invalid_json(exc: msgspec.DecodeError) -> UserError:
    """One mapper from msgspec's messages to a field path: ``Expected `int`, got `str` - at `$.n` ``."""
    text = str(exc)
    if not isinstance(exc, msgspec.ValidationError):
        return UserError(f"The body is not valid JSON. {text}.", code="invalid_json")
    reason, _, path = text.partition(" - at `$")
    if not path:
        reason, _, path = text.partition(" - at `key` in `$")
        reason = f"a key: {reason}" if path else reason
    param = path.rstrip("`").lstrip(".").replace("[...]", "") or None
    absent = _MISSING.match(reason)
    if absent:
        name = absent.group(1)
        param = f"{param}.{name}" if param else name
        return missing(param)
    reason = reason.replace("`", "").replace("of length <=", "of at most length")
    where = f"{param}: " if param else ""
    return UserError(f"{where}{reason}.", param=param, code="invalid_value")


_MISSING = re.compile(r"Object missing required field `([^`]*)`")


Envelope = Callable[[Failure, str], bytes]  # how an endpoint writes an error; the string is the request's id


def openai_envelope(fail: Failure, request_id: str) -> bytes:  # noqa: ARG001 - one signature for all envelopes
    """OpenAI's error object."""
    return fail.body


def _from_http(exc: HTTPException) -> Failure:
    kind, code, text = _HTTP_CODES.get(exc.status_code, ("invalid_request_error", "bad_request", "Bad request."))
    allow = (exc.headers or {}).get("Allow")
    headers = ((b"allow", allow.encode("ascii", "ignore")),) if allow else ()
    return Failure(exc.status_code, ErrorDetail(text, kind, None, code), headers)


def _headers(exc: UserError) -> tuple[tuple[bytes, bytes], ...]:
    wait: Any = getattr(exc, "retry_after_s", None)
    if wait is not None:
        return ((b"retry-after", str(max(1, math.ceil(wait))).encode()), *getattr(exc, "headers", ()))
    if isinstance(exc, Unauthorized):
        return ((b"www-authenticate", b"Bearer"),)
    if isinstance(exc, DeadlineExceeded):
        return ((b"x-should-retry", b"false"),)  # read by the openai client, which would send it twice more
    if isinstance(exc, TooSlow | TooLarge):
        return ((b"connection", b"close"),)
    return ()


def _clip(message: str) -> str:
    text = message.encode("utf-8", "replace").decode()  # lone surrogates cannot be encoded
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"
