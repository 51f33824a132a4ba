"""What comes over the wire where a request should: versions, framing, upgrades, and answers before the body's end."""

import re
import socket
import time

import pytest
from api_live import Live

BODY = b'{"prompt":"hi","max_tokens":1}'
HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON
CHUNKED = b"1e\r\n" + BODY + b"\r\n0\r\n\r\n"
SIZED = b"Content-Length: 30\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST
LAST = HEALTH + b"Connection: close\r\n\r\n"


def statuses(reply: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", reply)]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /health\r\n\r\n", 400),
        (b"GET /v1/models HTTP/0.9\r\n" + HOST + b"\r\n", 400),
        (b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n", 400),
        (b"GET /health HTTP/1.0\r\n\r\n", 200),
        (b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", 200),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED, 400),
        (POST + b"Transfer-Encoding: Chunked\r\nConnection: close\r\n\r\n" + CHUNKED, 200),
        (POST + b"Content-Length: 18446744073709551615\r\n\r\n" + BODY, 413),
        (POST + b"Content-Length: %b30\r\nConnection: close\r\n\r\n" % (b"0" * 5000) + BODY, 200),
    ],
)
def test_versions_and_framing(live: Live, data: bytes, status: int) -> None:
    assert statuses(live.raw(data)) == [status]


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (POST + UPGRADE + SIZED + b"\r\n" + BODY + LAST, [200, 200]),
        (POST + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED + LAST, [200, 200]),
        (POST + UPGRADE + b"Content-Length: 0\r\n\r\n" + LAST, [400, 200]),
        (HEALTH + UPGRADE + b"\r\n" + LAST, [200, 200]),
        ((HEALTH + UPGRADE + b"\r\n") * 1500 + LAST, [200] * 1501),
        # A body is a body, be it one that looks like a request.
        (POST + UPGRADE + b"Content-Length: %d\r\n\r\n" % len(HEALTH + b"\r\n") + HEALTH + b"\r\n" + LAST, [400, 200]),
        (POST + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", [400]),
        (HEALTH + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + b"\x81\x05hello", [400]),
    ],
)
def test_nobody_is_upgraded_and_no_body_is_lost(live: Live, data: bytes, want: list[int]) -> None:
    assert statuses(live.raw(data)) == want


def test_a_body_behind_an_upgrade_may_come_in_pieces(live: Live) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as sock:
        for piece in (POST + UPGRADE + SIZED, b"\r\n", BODY[:7], BODY[7:], LAST):
            sock.sendall(piece)
            time.sleep(0.02)
        got = b""
        while part := sock.recv(65536):
            got += part
    assert statuses(got) == [200, 200]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/completions", {}, 413),
        ("/v1/completions", {"X-Pad": "a" * (1 << 20)}, 431),
        ("/" + "a" * (1 << 20), {}, 414),
        ("/v1/completions", {"Transfer-Encoding": "gzip"}, 400),
    ],
)
def test_who_still_sends_reads_the_answer(live: Live, path: str, headers: dict[str, str], status: int) -> None:
    """A client that writes all before it reads is not met with a reset."""
    for _ in range(5):
        answer = live.call("POST", path, b"x" * ((8 << 20) + 1), headers)
        assert answer.status == status
        assert answer.error["message"]


def test_a_trailer_is_no_header(live: Live) -> None:
    """What a proxy in front checks, and what this server checks, stands before the body."""
    head = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    for trailer in (b"Host: evil.example", b"Origin: http://evil.example", b"X-Request-Timeout: nonsense"):
        assert statuses(live.raw(head + CHUNKED[:-2] + trailer + b"\r\n\r\n")) == [200]
    unframed = head.replace(HOST, b"")
    assert statuses(live.raw(unframed + CHUNKED[:-2] + HOST + b"\r\n")) == [400]


@pytest.mark.parametrize("more", [POST, HEALTH + b"\r\n", b""])
def test_who_leaves_with_a_request_behind_another_ends_both(
    live: Live, more: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    live.engine.delay_s = 0.02
    long = b'{"prompt":"hi","max_tokens":1000}'
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as sock:
        sock.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(long) + long + more)
        while not live.engine.open:
            time.sleep(0.01)
    assert live.quiet(5.0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
