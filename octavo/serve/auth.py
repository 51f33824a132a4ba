"""Who may call what. Deny by default: a route without a scope cannot be made.

Keys come as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``. With keys set, every route but the open ones needs
one with the route's scope. Without keys the server trusts who can reach it, so it must listen on loopback, and it
defends the browser of the person it runs for: the Host header must be a loopback name (a web page cannot reach it
through DNS rebinding), and an Origin of another web site is refused always.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.types import Scope as AsgiScope

from octavo.base.errors import ConfigError, UserError
from octavo.serve.errors import Forbidden, Unauthorized
from octavo.serve.keyfile import UNLIMITED, KeyLimits, Scope, digest_of
from octavo.serve.keys import KeyRing
from octavo.serve.query import header

__all__ = ["NOBODY", "Caller", "Guard", "Scope", "is_loopback"]

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Caller:
    """Who a request comes from."""

    tenant: str = ""  # for caches, shares and counts; empty when there is nobody to be kept apart from
    owner: str = ""  # whose stored things it may see; empty where no keys are set
    limits: KeyLimits = UNLIMITED


NOBODY = Caller()


class Guard:
    """Checks one request against the keys and against other web sites."""

    def __init__(
        self,
        keys: KeyRing,
        host: str,
        *,
        insecure: bool = False,
        open_docs: bool = False,
        origins: Sequence[str] = (),
    ) -> None:
        """`origins`: other web sites that may call all the same; ``*`` is any.

        ConfigError for an address that others can reach while nobody needs a key, unless that is said to be wanted.
        """
        self._keys = keys
        self._loopback = is_loopback(host)
        if not (keys.active or self._loopback or insecure):
            raise ConfigError(
                f"--host {host[:80]} lets others in without a key: give --api-key or --api-key-file, or --insecure"
            )
        self._host = host.lower()
        self._open_docs = open_docs
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    def check(self, needs: Scope, request: AsgiScope, *, inside: bool = False) -> Caller:
        """The caller. Unauthorized without a valid key, Forbidden for one that lacks the scope, or another web site.

        `inside`: the request came through the operator's own loopback port, where being there is enough.
        """
        headers = request["headers"]
        host = _host_header(request)
        if needs in (Scope.OPEN, Scope.PAGE) or (needs is Scope.DOCS and self._open_docs):
            return NOBODY
        if self._keys.active and not inside:
            caller = self._caller(needs, headers)
        else:
            caller = NOBODY
            self._check_host(host, inside=inside)
            if needs is Scope.ADMIN and not (inside or self._loopback):
                raise Forbidden("This needs a key with the scope admin, or --admin-port.", code="scope_missing")
        # Where being there is enough to administer, no web site is let in, whatever the operator has named.
        bare = inside or (needs is Scope.ADMIN and caller is NOBODY)
        origin = (header(request, b"origin") or "").lower()
        if bare or not self.allows(origin):
            _check_origin(origin, (header(request, b"sec-fetch-site") or "").lower(), host)
        return caller

    def allows(self, origin: str) -> bool:
        """Whether another web site may call: only what the operator has named."""
        return bool(origin) and ("*" in self._origins or origin.lower() in self._origins)

    def _caller(self, needs: Scope, headers: Headers) -> Caller:
        key = self._keys.find(_given_key(headers))
        if key is None:
            raise Unauthorized("A valid API key is needed: Authorization: Bearer KEY.")
        if needs is not Scope.DOCS and needs not in key.scopes:
            raise Forbidden(f"This key does not have the scope {needs.value}.", code="scope_missing")
        return Caller(key.tenant if self._keys.many else "", key.owner, key.limits)

    def _check_host(self, host: str, *, inside: bool) -> None:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if (self._loopback or inside) and host and not (is_loopback(name) or (name == self._host and not inside)):
            raise Forbidden("This server answers to loopback host names only.", code="host_refused")


def is_loopback(name: str) -> bool:
    """Whether a host name or address stands for this machine."""
    name = name.strip("[]").lower()
    if name in {"localhost", "localhost."} or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _given_key(headers: Headers) -> bytes:
    """Digest of the key in the headers. Two keys of one kind are refused: a proxy may have checked the other."""
    bearer = [value for name, value in headers if name == b"authorization"]
    plain = [value for name, value in headers if name == b"x-api-key"]
    if len(bearer) > 1 or len(plain) > 1:
        raise Unauthorized("Send one API key.")
    if bearer:
        scheme, _, key = bearer[0].partition(b" ")
        if scheme.lower() == b"bearer":
            return digest_of(key.strip())
    if plain:
        return digest_of(plain[0].strip())
    return digest_of(b"")


def _host_header(request: AsgiScope) -> str:
    values = [value for name, value in request["headers"] if name == b"host"]
    if len(values) > 1 or (not values and request["http_version"] == "1.1"):
        raise UserError("Send one Host header.", code="bad_request")
    host = values[0].decode("latin-1").lower() if values else ""
    if any(not ("!" <= char <= "~") or char in '/\\@?#"<>^`{|}' for char in host):
        raise UserError("The Host header is malformed.", code="bad_request")
    return host


def _check_origin(origin: str, site: str, host: str) -> None:
    """A page of another web site may not call. Schemes of desktop programs pass: no web page can forge them."""
    if not origin or site == "same-origin":
        return
    scheme, _, authority = origin.partition("://")
    if origin == "null" or (scheme in {"http", "https"} and authority != host):
        raise Forbidden("Requests from other web sites are refused.", code="origin_refused")
