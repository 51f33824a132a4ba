"""TLS on the main port: 1.2 or later, with certificates that are taken over when their files change."""

import logging
import os
import ssl

from octavo.base.config import ServeConfig
from octavo.base.errors import ConfigError

log = logging.getLogger("octavo.serve")

Files = tuple[str, str | None, str | None]  # certificate, key, authorities


class Certificates:
    """The files of ``--ssl-certfile`` and its companions, and the context made of them."""

    def __init__(self, serve: ServeConfig) -> None:
        """ConfigError for files that cannot be used together."""
        assert serve.ssl_certfile
        self._files: Files = (serve.ssl_certfile, serve.ssl_keyfile, serve.ssl_ca_certs)
        self._refreshes = serve.enable_ssl_refresh
        self._state = self._look()
        self.context = _context(self._files)
        if serve.ssl_ca_certs or serve.ssl_cert_reqs is not None:
            wanted = 2 if serve.ssl_cert_reqs is None else serve.ssl_cert_reqs
            self.context.verify_mode = ssl.VerifyMode(wanted)
        if serve.ssl_ciphers is not None:
            try:
                self.context.set_ciphers(serve.ssl_ciphers)
            except ssl.SSLError:
                raise ConfigError("--ssl-ciphers names none that OpenSSL knows") from None

    def refresh(self) -> bool:
        """Takes changed files over for connections from now on; True if it did. Files at fault change nothing.

        They are tried in a context of their own first: certificate and key are two files, and between the writing of
        one and of the other they do not fit.
        """
        state = self._look() if self._refreshes else self._state
        if state == self._state:
            return False
        try:
            _context(self._files)
            _load(self.context, self._files)
        except ConfigError as error:
            log.warning("the certificate stays as it was: %s", error)
            self._state = state
            return False
        self._state = state
        log.info("took over the certificate in %s", self._files[0])
        return True

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_state_of(path) for path in self._files)


def certificates(serve: ServeConfig) -> Certificates | None:
    """None where TLS is not asked for. ConfigError for a part without the rest."""
    if serve.ssl_certfile:
        return Certificates(serve)
    for name in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers"):
        if getattr(serve, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} needs --ssl-certfile")
    return None


def _context(files: Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: Files) -> None:
    certificate, key, authorities = files
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(_reason("--ssl-certfile and --ssl-keyfile", error)) from None
    if authorities is None:
        return
    try:
        context.load_verify_locations(authorities)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(_reason("--ssl-ca-certs", error)) from None


def _reason(what: str, error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{what} do not hold what they should ({error.reason or 'not PEM'})"
    return f"{what}: {getattr(error, 'strerror', None) or error}"


def _no_password() -> str:
    """OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted; give it without a password")


def _state_of(path: str | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
