"""TLS with real sockets: versions, renewal while running, client certificates, and starts that cannot work."""

import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from api_live import Live, backend, config
from msgspec.structs import replace

from octavo.base.errors import ConfigError
from octavo.serve.tls import certificates


def write(folder: Path, authority: trustme.CA, name: str = "localhost") -> tuple[str, str]:
    issued = authority.issue_cert(name, "127.0.0.1")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return str(certificate), str(key)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def get(live: Live, context: ssl.SSLContext, path: str = "/health") -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", live.port, context=context, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(tmp_path: Path, authority: trustme.CA) -> Iterator[Live]:
    certificate, key = write(tmp_path, authority)
    with Live(config(ssl_certfile=certificate, ssl_keyfile=key, admin_port=0), backend()) as live:
        yield live


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_it_serves_and_old_versions_are_refused(secure: Live, authority: trustme.CA) -> None:
    context = trusting(authority)
    assert get(secure, context) == get(secure, context, "/v1/models") == 200
    with (
        socket.create_connection(("127.0.0.1", secure.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        assert sock.version() in ("TLSv1.2", "TLSv1.3")
    old = trusting(authority)
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        get(secure, old)
    assert b"200 OK" not in secure.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", timeout=1.0)


def test_the_admin_door_is_plain(secure: Live) -> None:
    assert secure.server.admin is not None
    secure.port = secure.server.admin.getsockname()[1]
    assert secure.get("/health").status == 200


def test_a_stream_over_tls(secure: Live, authority: trustme.CA) -> None:
    connection = http.client.HTTPSConnection("localhost", secure.port, context=trusting(authority), timeout=5)
    body = b'{"prompt": "hello", "max_tokens": 50, "stream": true}'
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
    connection.close()


def test_a_new_certificate_is_taken_over_and_open_connections_stay(
    secure: Live, tmp_path: Path, authority: trustme.CA
) -> None:
    kept = http.client.HTTPSConnection("127.0.0.1", secure.port, context=trusting(authority), timeout=5)
    kept.request("GET", "/health")
    kept.getresponse().read()
    other = trustme.CA()
    key = (tmp_path / "key.pem").read_bytes()
    write(tmp_path, other)
    new_key = (tmp_path / "key.pem").read_bytes()
    (tmp_path / "key.pem").write_bytes(key)  # half of the renewal: the parts do not fit together
    time.sleep(1.5)
    assert get(secure, trusting(authority)) == 200, "the old one is still in use"
    (tmp_path / "key.pem").write_bytes(new_key)
    end = time.monotonic() + 5
    while True:
        try:
            assert get(secure, trusting(other)) == 200
            break
        except ssl.SSLError:
            assert time.monotonic() < end, "never taken over"
            time.sleep(0.1)
    with pytest.raises(ssl.SSLError):
        get(secure, trusting(authority))
    kept.request("GET", "/health")
    assert kept.getresponse().status == 200
    kept.close()


def test_client_certificates(tmp_path: Path, authority: trustme.CA) -> None:
    certificate, key = write(tmp_path, authority)
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    conf = config(ssl_certfile=certificate, ssl_keyfile=key, ssl_ca_certs=str(tmp_path / "ca.pem"))
    with Live(conf, backend()) as live:
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
            get(live, trusting(authority))
        known = trusting(authority)
        authority.issue_cert("client@example").configure_cert(known)
        assert get(live, known) == 200
        foreign = trusting(authority)
        trustme.CA().issue_cert("client@example").configure_cert(foreign)
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
            get(live, foreign)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_authority_that_was_taken_away_is_trusted_no_more(
    tmp_path: Path, authority: trustme.CA, version: ssl.TLSVersion
) -> None:
    """Nor does a session that was begun under it go on."""
    certificate, key = write(tmp_path, authority)
    other, trusted = trustme.CA(), tmp_path / "ca.pem"
    trusted.write_bytes(authority.cert_pem.bytes() + other.cert_pem.bytes())
    clients = [trusting(authority), trusting(authority)]
    for context, signed_by in zip(clients, (authority, other)):
        signed_by.issue_cert("client@example").configure_cert(context)
        context.minimum_version = context.maximum_version = version
    staying, leaving = clients
    with Live(config(ssl_certfile=certificate, ssl_keyfile=key, ssl_ca_certs=str(trusted)), backend()) as live:
        session = begin_session(live, leaving)
        assert get(live, staying) == get(live, leaving) == 200
        assert resumes(live, leaving, session)
        trusted.write_bytes(authority.cert_pem.bytes())
        end = time.monotonic() + 5
        while refused(live, leaving) is False:
            assert time.monotonic() < end, "still trusted"
            time.sleep(0.1)
        assert get(live, staying) == 200
        assert not resumes(live, leaving, session)


def begin_session(live: Live, context: ssl.SSLContext) -> ssl.SSLSession:
    with (
        socket.create_connection(("127.0.0.1", live.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in sock.recv(4096)  # tickets come with the first bytes in TLS 1.3
        assert sock.session is not None
        return sock.session


def resumes(live: Live, context: ssl.SSLContext, session: ssl.SSLSession) -> bool:
    try:
        with (
            socket.create_connection(("127.0.0.1", live.port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as sock,
        ):
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return b"200 OK" in sock.recv(4096) and bool(sock.session_reused)
    except (ssl.SSLError, ConnectionError):
        return False


def refused(live: Live, context: ssl.SSLContext) -> bool:
    try:
        return get(live, context) != 200
    except (ssl.SSLError, ConnectionError, http.client.BadStatusLine):
        return True


def test_a_handshake_that_never_ends_is_cut(tmp_path: Path, authority: trustme.CA) -> None:
    certificate, key = write(tmp_path, authority)
    conf = config(ssl_certfile=certificate, ssl_keyfile=key)
    conf = replace(conf, serve=replace(conf.serve, limits=replace(conf.serve.limits, header_timeout=0.3)))
    with Live(conf, backend()) as live:
        begin = time.monotonic()
        assert live.raw(b"\x16\x03\x01", timeout=5) == b""
        assert time.monotonic() - begin < 4


@pytest.mark.parametrize("case", ["missing", "not_pem", "mismatch", "alone", "ciphers"])
def test_what_cannot_work_is_one_line_before_anything_loads(tmp_path: Path, authority: trustme.CA, case: str) -> None:
    certificate, key = write(tmp_path, authority)
    given: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": key}
    if case == "missing":
        given["ssl_keyfile"] = str(tmp_path / "nothing.pem")
    elif case == "not_pem":
        (tmp_path / "cert.pem").write_text("hello")
    elif case == "mismatch":
        (tmp_path / "key.pem").write_bytes(authority.issue_cert("x").private_key_pem.bytes())
    elif case == "alone":
        del given["ssl_certfile"]
    else:
        given["ssl_ciphers"] = "NONSENSE"
    with pytest.raises(ConfigError) as caught:
        certificates(config(**given).serve)
    assert "\n" not in str(caught.value)
    assert "--ssl-" in str(caught.value)
