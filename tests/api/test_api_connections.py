"""Connections with real sockets: how many, from where, who goes first, and clients that do not read."""

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from api_live import Live, backend, config

from octavo.base.config import LimitsConfig
from octavo.serve.connections import Connections
from octavo.serve.main import raise_file_limit

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(live: Live, buffer: int = 0) -> socket.socket:
    sock = socket.socket()
    if buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.settimeout(5)
    sock.connect(("127.0.0.1", live.port))
    return sock


def asks(sock: socket.socket) -> bytes:
    sock.sendall(HEALTH)
    got = b""
    while b'{"status":"ok"}' not in got:
        got += sock.recv(65536) or pytest.fail(f"closed after {got!r}")
    return got


def gone(sock: socket.socket, seconds: float = 5.0) -> bool:
    sock.settimeout(seconds)
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.fixture
def small() -> Iterator[Live]:
    with Live(config(limits=LimitsConfig(max_connections=16)), backend()) as live:
        yield live


def test_idle_ones_make_room_the_longest_idle_first(small: Live) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(connect(small)) for _ in range(16)]
        for sock in held:
            assert b"200 OK" in asks(sock)
        assert b"200 OK" in asks(held[0])  # now the second is the one that has been idle longest
        newcomer = stack.enter_context(connect(small))
        assert b"200 OK" in asks(newcomer)
        assert gone(held[1])
        assert b"200 OK" in asks(held[0])
        assert b"200 OK" in asks(held[15])
        assert len(small.server.book) == 16


def test_a_thousand_silent_ones_keep_nobody_out(small: Live) -> None:
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(connect(small)).sendall(b"GET /hea")
        assert small.get("/health").status == 200
        assert len(small.server.book) <= 17
    end = time.monotonic() + 5
    while len(small.server.book):
        assert time.monotonic() < end, "they are gone and still counted"
        time.sleep(0.02)


def test_when_all_are_busy_a_newcomer_is_told_so_and_operators_get_in() -> None:
    with Live(config(limits=LimitsConfig(max_connections=16), admin_port=0), backend()) as live:
        live.engine.delay_s = 0.1
        body = b'{"prompt": "hello", "max_tokens": 100, "stream": true}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with ExitStack() as stack:
            for _ in range(16):
                sock = stack.enter_context(connect(live))
                sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            while len(live.engine.open) < 16:
                time.sleep(0.01)
            reply = live.raw(HEALTH)
            assert b" 503 " in reply
            assert b"too_many_connections" in reply
            assert b"retry-after: 1" in reply
            main, live.port = live.port, live.server.admin.getsockname()[1]  # type: ignore[union-attr]
            assert live.get("/health").status == 200
            live.port = main
        assert live.quiet()
        assert live.get("/health").status == 200


def test_each_address_has_its_bound() -> None:
    class Dummy:
        left = False

        def leave(self) -> None:
            self.left = True

    book = Connections(LimitsConfig(max_connections=1000, max_connections_per_address=3))
    some = [Dummy() for _ in range(9)]
    assert [book.enter(one, "192.0.2.7") for one in some[:4]] == [True, True, True, False]
    assert book.enter(some[4], "192.0.2.8")
    assert all(book.enter(one, "127.0.0.1") for one in some[5:])
    book.leave(some[3], "192.0.2.7")  # which never entered
    assert not book.enter(some[3], "192.0.2.7")
    book.leave(some[0], "192.0.2.7")
    assert book.enter(some[3], "192.0.2.7")
    for one, address in zip(some[1:4] + some[4:5] + some[5:], ["192.0.2.7"] * 3 + ["192.0.2.8"] + ["127.0.0.1"] * 4):
        book.leave(one, address)
    assert len(book) == 0
    assert not book._by_address
    assert not any(one.left for one in some)


def test_keep_alive_has_an_end() -> None:
    with Live(config(limits=LimitsConfig(timeout_keep_alive=1)), backend()) as live, connect(live) as sock:
        assert b"200 OK" in asks(sock)
        begin = time.monotonic()
        assert gone(sock)
        assert 0.5 < time.monotonic() - begin < 4


def test_a_whole_answer_that_nobody_reads_is_cut() -> None:
    limits = LimitsConfig(send_timeout=0.4)
    live = Live(config(limits=limits), backend(max_model_len=1 << 17))
    live._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # else the system takes megabytes for us
    with live:
        live.engine.step_tokens = 1000
        body = b'{"prompt": "hi", "max_tokens": 1000, "logprobs": 20, "ignore_eos": true}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with connect(live, buffer=4096) as sock:
            sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            end = time.monotonic() + 20
            while not live.engine.stats.generation_tokens or live.engine.open or len(live.server.book):
                assert time.monotonic() < end, "it is kept for a client that does not read"
                time.sleep(0.02)
        assert live.get("/health").status == 200


def test_a_slow_reader_who_reads_is_left_alone() -> None:
    limits = LimitsConfig(send_timeout=0.5)
    with Live(config(limits=limits), backend(max_model_len=1 << 17)) as live:
        live.engine.step_tokens = 1000
        body = b'{"prompt": "hi", "max_tokens": 600, "logprobs": 20, "ignore_eos": true}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        with connect(live, buffer=16384) as sock:
            sock.sendall(head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            got = b""
            while part := sock.recv(16384):
                got += part
                time.sleep(0.02)
        length = int(got.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert len(got.partition(b"\r\n\r\n")[2]) == length > 150_000


def test_the_limit_of_files_is_raised_and_where_it_cannot_be_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [1024, 1 << 20]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limits.__setitem__(slice(None), given))
    raise_file_limit(16_384)
    assert limits == [65_536, 1 << 20]
    raise_file_limit(100_000)
    assert limits[0] > 100_000
    assert Connections(LimitsConfig(max_connections=100_000))._most == 100_000
    assert not caplog.records
    limits[:] = [1024, 4096]
    with caplog.at_level("WARNING", "octavo.serve"):
        raise_file_limit(16_384)
    assert limits == [4096, 4096]
    assert "room for 3840 connections of the 16384" in caplog.text
