"""Anthropic's error envelope: ``{"type": "error", "error": {"type", "message"}, "request_id"}``."""

import msgspec

from octavo.serve.errors import Failure

_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def envelope(fail: Failure, request_id: str) -> bytes:
    """The body of an error, or the data of an ``error`` event."""
    kind = _BY_STATUS.get(fail.status, "invalid_request_error" if fail.status < 500 else "api_error")
    error = {"type": kind, "message": fail.error.message}
    return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})
