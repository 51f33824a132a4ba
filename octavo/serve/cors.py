"""Pages of other web sites, where the operator lets them in: what a browser asks beforehand and wants to read after.

Without ``--allowed-origins`` nothing of this exists, and the guard refuses such pages. Cookies mean nothing here, so
credentials are never allowed: a page sends its key as a header like anyone else.
"""

import re
from collections.abc import Callable, Sequence

from starlette.types import Scope

from octavo.base.errors import ConfigError
from octavo.serve.calls import Header, Reply
from octavo.serve.query import header

# The names that the openai and anthropic clients send from a browser.
ALLOWED_HEADERS = (
    b"authorization, content-type, accept, x-api-key, x-request-id, anthropic-version, anthropic-beta, "
    b"anthropic-dangerous-direct-browser-access, openai-organization, openai-project, openai-beta, idempotency-key, "
    b"x-request-timeout, "
    b"x-stainless-arch, x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-retry-count, "
    b"x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout, x-stainless-helper-method, "
    b"x-stainless-poll-helper, x-stainless-custom-poll-interval, x-stainless-helper"
)
EXPOSED_HEADERS = (
    b"x-request-id, x-octavo-ignored, retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
MAX_AGE_S = b"600"
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@\\]+/?")


def check_origins(origins: Sequence[str]) -> None:
    """ConfigError for one that no browser would ever send."""
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(f"--allowed-origins takes https://HOST[:PORT] or *, got {origin[:80]!r}")


class Cors:
    """`allows`: whether an origin may call."""

    def __init__(self, allows: Callable[[str], bool]) -> None:
        self._allows = allows

    def headers(self, scope: Scope) -> tuple[Header, ...]:
        """What lets the page of the request read the answer."""
        origin = header(scope, b"origin") or ""
        if not self._allows(origin):
            return ((b"vary", b"origin"),)
        return (
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED_HEADERS),
            (b"vary", b"origin"),
        )

    def is_preflight(self, scope: Scope) -> bool:
        """Whether a browser asks for one of the pages let in. Such a question carries no key."""
        asks = scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method")
        return bool(asks) and self._allows(header(scope, b"origin") or "")

    def preflight(self, methods: Sequence[str]) -> Reply:
        """The answer; it says nothing that the documentation does not."""
        headers = (
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", ALLOWED_HEADERS),
            (b"access-control-max-age", MAX_AGE_S),
        )
        return Reply(b"", 204, headers=headers)
