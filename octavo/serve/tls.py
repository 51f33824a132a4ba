"""TLS on the main port: 1.2 or later, with certificates that are taken over when their files change."""

import logging
import ssl
from typing import Any

from octavo.base.config import ServeConfig
from octavo.base.errors import ConfigError
from octavo.serve.keys import state_of

log = logging.getLogger("octavo.serve")


class Newest(ssl.SSLContext):
    """What a listener is given once and keeps: each handshake begins with the context that is the newest then.

    Loading into a context that is in use would leave authorities that were taken away in its store, and would let
    sessions go on that were begun under them.
    """

    newest: ssl.SSLContext

    @classmethod
    def of(cls, context: ssl.SSLContext) -> "Newest":
        """A listener's context that begins with this one."""
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made.newest = context
        return made

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Called by the event loop for each connection."""
        return self.newest.wrap_bio(*args, **kwargs)


class Certificates:
    """The files of ``--ssl-certfile`` and its companions. `context` is for a listener, for good."""

    def __init__(self, serve: ServeConfig) -> None:
        """ConfigError for files that cannot be used together."""
        self._serve = serve
        self._state = self._look()
        self.context = Newest.of(_context(serve))

    def refresh(self) -> bool:
        """Takes changed files over for connections from now on; True if it did. Files at fault change nothing:
        certificate and key are two files, and between the writing of one and of the other they do not fit."""
        state = self._look() if self._serve.enable_ssl_refresh else self._state
        if state == self._state:
            return False
        self._state = state
        try:
            self.context.newest = _context(self._serve)
        except ConfigError as error:
            log.warning("the certificate stays as it was: %s", error)
            return False
        log.info("took over the certificate in %s", self._serve.ssl_certfile)
        return True

    def _look(self) -> tuple[tuple[int, ...] | None, ...]:
        serve = self._serve
        return tuple(state_of(path) for path in (serve.ssl_certfile, serve.ssl_keyfile, serve.ssl_ca_certs))


def certificates(serve: ServeConfig) -> Certificates | None:
    """None where TLS is not asked for. ConfigError for a part without the rest."""
    if serve.ssl_certfile is not None:
        return Certificates(serve)
    for name in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers"):
        if getattr(serve, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} needs --ssl-certfile")
    return None


def _context(serve: ServeConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    assert serve.ssl_certfile is not None
    try:
        context.load_cert_chain(serve.ssl_certfile, serve.ssl_keyfile, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(_reason("--ssl-certfile and --ssl-keyfile", error)) from None
    try:
        if serve.ssl_ca_certs is not None:
            context.load_verify_locations(serve.ssl_ca_certs)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(_reason("--ssl-ca-certs", error)) from None
    if serve.ssl_ca_certs or serve.ssl_cert_reqs is not None:
        context.verify_mode = ssl.VerifyMode(2 if serve.ssl_cert_reqs is None else serve.ssl_cert_reqs)
    try:
        if serve.ssl_ciphers is not None:
            context.set_ciphers(serve.ssl_ciphers)
    except ssl.SSLError:
        raise ConfigError("--ssl-ciphers names none that OpenSSL knows") from None
    return context


def _reason(what: str, error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{what} do not hold what they should ({error.reason or 'not PEM'})"
    return f"{what}: {getattr(error, 'strerror', None) or error}"


def _no_password() -> str:
    """OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted; give it without a password")
