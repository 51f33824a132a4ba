"""Who may call what. Deny by default: a route without a scope cannot be made.

Keys come as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``. With keys set, every route but the open ones needs
one. Without keys the server trusts who can reach it, so it defends the browser of the person it runs for:
on a loopback address the Host header must be a loopback name (a web page cannot reach it through DNS rebinding), and
an Origin of another web site is refused always.
"""

import enum
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Sequence

from starlette.types import Scope as AsgiScope

from octavo.base.errors import ConfigError, UserError
from octavo.serve.errors import Forbidden, Unauthorized

Headers = Iterable[tuple[bytes, bytes]]


class Scope(enum.Enum):
    """What a route asks of its caller."""

    OPEN = "open"  # probes and the page: say nothing about the model or its users
    ADMIN = "admin"  # what changes the server for everybody: any valid key
    USE = "use"  # inference, its tools, and the server's own figures: any valid key
    DOCS = "docs"  # the description of the API: like USE, unless the operator opens it


class Guard:
    """Checks one request against the keys and against other web sites."""

    def __init__(self, keys: Sequence[str], host: str, *, open_docs: bool = False, origins: Sequence[str] = ()) -> None:
        """`origins`: other web sites that may call all the same; ``*`` is any."""
        if not all(key.strip() == key and key for key in keys):
            raise ConfigError("an --api-key is empty or has blanks round it; such a key would let anyone in")
        self._digests = [_digest(key.encode()) for key in keys]
        self._loopback = is_loopback(host)
        self._host = host.lower()
        self._open_docs = open_docs
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    def check(self, needs: Scope, request: AsgiScope) -> str:
        """The tenant: a stable name for the key used, empty when keys are off or there is but one."""
        headers = request["headers"]
        host = _host_header(headers)
        if needs is Scope.OPEN or (needs is Scope.DOCS and self._open_docs):
            return ""
        if self._digests:
            tenant = self._tenant(headers)
        else:
            tenant = ""
            self._check_host(host)
        if not self.allows(_origin(headers)):
            _check_origin(headers, host)
        return tenant

    def owner(self, request: AsgiScope) -> str:
        """Whose stored things a request may see: a digest of its key, empty where no keys are set."""
        return _given_key(request["headers"]).hex()[:32] if self._digests else ""

    def allows(self, origin: str) -> bool:
        """Whether another web site may call: only what the operator has named."""
        return bool(origin) and ("*" in self._origins or origin.lower() in self._origins)

    def _tenant(self, headers: Headers) -> str:
        given = _given_key(headers)
        found = -1
        for index, digest in enumerate(self._digests):  # no early exit: the time must not tell which key is near
            if hmac.compare_digest(digest, given):
                found = index
        if found < 0:
            raise Unauthorized("A valid API key is needed: Authorization: Bearer KEY.")
        return self._digests[found].hex()[:16] if len(self._digests) > 1 else ""

    def _check_host(self, host: str) -> None:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self._loopback and host and not (is_loopback(name) or name == self._host):
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
            return _digest(key.strip())
    if plain:
        return _digest(plain[0].strip())
    return _digest(b"")


def _host_header(headers: Headers) -> str:
    values = [value for name, value in headers if name == b"host"]
    if len(values) > 1:
        raise UserError("Send one Host header.", code="bad_request")
    host = values[0].decode("latin-1").lower() if values else ""
    if any(not ("!" <= char <= "~") or char in '/\\@?#"<>^`{|}' for char in host):
        raise UserError("The Host header is malformed.", code="bad_request")
    return host


def _origin(headers: Headers) -> str:
    return next((value.decode("latin-1") for name, value in headers if name == b"origin"), "")


def _check_origin(headers: Headers, host: str) -> None:
    """A page of another web site may not call. Schemes of desktop programs pass: no web page can forge them."""
    origin = site = ""
    for name, value in headers:
        if name == b"origin":
            origin = value.decode("latin-1").lower()
        elif name == b"sec-fetch-site":
            site = value.decode("latin-1").lower()
    if not origin or site == "same-origin":
        return
    scheme, _, authority = origin.partition("://")
    if origin == "null" or (scheme in {"http", "https"} and authority != host):
        raise Forbidden("Requests from other web sites are refused.", code="origin_refused")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
