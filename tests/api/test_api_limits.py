"""Size, time, type and shape of what comes in; and what happens when a client leaves."""

import socket
import struct
import threading
import time

import pytest
from api_live import Live, backend, config

from octavo.base.config import LimitsConfig
from octavo.serve import limits


def status_of(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1]) if reply else 0


def chat_head(length: int, extra: bytes = b"") -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n%s\r\n" % (length, extra)
    )


def test_big_header(live: Live) -> None:
    start = time.monotonic()
    reply = live.raw(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Pad: " + b"a" * (1 << 20) + b"\r\n\r\n"
    )
    assert status_of(reply) == 431
    assert time.monotonic() - start < 1
    reply = live.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Pad: " + b"a" * 33_000 + b"\r\n\r\n")
    assert status_of(reply) == 431
    assert b"headers_too_large" in reply


def test_unfinished_big_header(live: Live) -> None:
    reply = live.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Pad: " + b"a" * 40_000)
    assert status_of(reply) == 431


def test_many_headers(live: Live) -> None:
    pad = b"".join(b"X-%d: a\r\n" % index for index in range(150))
    assert status_of(live.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + pad + b"\r\n")) == 431


def test_long_url(live: Live) -> None:
    assert status_of(live.raw(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 414


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00" * 100,
        b"GET /\x01 HTTP/1.1\r\n\r\n",
        b"{}\r\n\r\n",
    ],
)
def test_not_http(live: Live, data: bytes) -> None:
    assert status_of(live.raw(data)) == 400
    assert live.get("/health").status == 200


@pytest.mark.parametrize(
    ("coding", "rest", "status"),
    [
        (b"chunked", b"zz\r\nabc\r\n0\r\n\r\n", 400),
        (b"chunked", b"ffffffffffffffffffff\r\nabc\r\n", 400),
        (b"chunked", b"2\r\n{}\r\n0\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(300)) + b"\r\n", 431),
        (b"gzip, identity", b"{}", 400),
    ],
)
def test_a_malformed_body_is_answered_though_its_head_was_sound(
    live: Live, coding: bytes, rest: bytes, status: int
) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    reply = live.raw(head + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + rest)
    assert status_of(reply) == status
    assert reply.count(b"HTTP/1.1") == 1
    assert live.complete(max_tokens=2).status == 200


def test_smuggling_is_refused(live: Live) -> None:
    both = chat_head(5, b"Transfer-Encoding: chunked\r\n") + b"0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n"
    assert status_of(live.raw(both)) == 400


def test_body_too_large_is_refused_by_header_and_while_reading() -> None:
    with Live(config(max_body_bytes=2048), backend()) as live:
        answer = live.post("/v1/completions", {"prompt": "x" * 4000})
        assert answer.status == 413
        assert answer.error["code"] == "body_too_large"
        head = chat_head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
        assert status_of(live.raw(head + chunk * 4)) == 413


@pytest.mark.parametrize(
    "kind",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx"],
)
def test_content_types(live: Live, kind: str) -> None:
    assert live.call("POST", "/v1/completions", b'{"prompt":"a"}', {"Content-Type": kind}).status == 415


def test_charset_and_encoding(live: Live) -> None:
    body = b'{"prompt":"a","max_tokens":1}'
    for good in ("application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'):
        assert live.call("POST", "/v1/completions", body, {"Content-Type": good}).status == 200
    assert (
        live.call("POST", "/v1/completions", body, {"Content-Type": "application/json; charset=utf-16"}).status == 415
    )
    assert live.post("/v1/completions", body, Content_Encoding="gzip").status == 415


def test_slow_head_and_slow_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_GRACE_S", 0.6)
    with Live(config(limits=LimitsConfig(header_timeout=0.3, body_gap_timeout=0.3)), backend()) as live:
        assert status_of(live.raw(b"GET /health HTTP/1.1\r\nHost: lo")) == 408
        assert live.raw(b"") == b""  # silence: closed without an answer
        assert status_of(live.raw(chat_head(100) + b"{")) == 408
        with socket.create_connection(("127.0.0.1", live.port), timeout=5) as sock:  # below the gap, above the total
            sock.sendall(chat_head(1000))
            start = time.monotonic()
            reply = b""
            sock.settimeout(0.1)
            while not reply and time.monotonic() - start < 4:
                try:
                    sock.sendall(b" ")
                    reply = sock.recv(4096)
                except TimeoutError:
                    continue
                except OSError:
                    break
            assert status_of(reply) == 408
            assert time.monotonic() - start < 3
        assert live.get("/health").status == 200


def test_deadline_of_a_whole_answer_and_of_a_stream() -> None:
    with Live(config(request_timeout=0.4), backend()) as live:
        live.engine.delay_s = 0.05
        answer = live.chat(max_tokens=200)
        assert answer.status == 504
        assert answer.headers["x-should-retry"] == "false"
        assert live.quiet()
        answer = live.chat(max_tokens=200, stream=True)
        assert answer.status == 200
        assert answer.events[-1]["error"]["code"] == "request_timeout"
        assert live.quiet()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("reset", [True, False])
def test_client_that_leaves_frees_the_engine(live: Live, stream: bool, n: int, reset: bool) -> None:
    live.engine.delay_s = 0.02
    flag = b"true" if stream else b"false"
    body = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":900,"n":%d,"stream":%s}' % (n, flag)
    sock = socket.create_connection(("127.0.0.1", live.port), timeout=5)
    sock.sendall(chat_head(len(body)) + body)
    if stream:
        assert b"200 OK" in sock.recv(4096)
    while len(live.engine.open) < n:
        time.sleep(0.005)
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    before = live.engine.stats.generation_tokens
    sock.close()
    assert live.quiet()
    # Counted in steps of the engine, since a busy machine slows both alike.
    assert live.engine.stats.generation_tokens - before <= 10 * n
    assert sorted(live.engine.aborted) == sorted(request.id for request in live.engine.requests)


def test_client_that_leaves_in_its_body(live: Live) -> None:
    sock = socket.create_connection(("127.0.0.1", live.port), timeout=5)
    sock.sendall(chat_head(100) + b'{"messages":')
    time.sleep(0.05)
    sock.close()
    assert live.quiet()
    assert not live.engine.requests


def test_stream_that_nobody_reads_is_cut() -> None:
    with Live(config(limits=LimitsConfig(send_timeout=0.3)), backend(max_model_len=1 << 20)) as live:
        live.engine.step_tokens = 200
        live.engine.next_token = lambda line: 70 + len(line) % 40
        # Log-probabilities make an answer large enough for the sockets' buffers to fill.
        body = b'{"messages":[{"role":"user","content":"a"}],"stream":true,"logprobs":true,"top_logprobs":20}'
        with socket.socket() as sock:
            sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
            )  # before it connects: then the window stays small
            sock.settimeout(20)
            sock.connect(("127.0.0.1", live.port))
            sock.sendall(chat_head(len(body)) + body)
            made, since = 0, time.monotonic()
            while not live.engine.aborted:  # the buffers fill at the speed of the machine; then 0.3 s pass
                if live.engine.stats.generation_tokens > made:
                    made, since = live.engine.stats.generation_tokens, time.monotonic()
                assert time.monotonic() - since < 20, "the stream stands still and is not cut"
                time.sleep(0.05)
        assert live.quiet()


def test_room_for_open_requests() -> None:
    with Live(config(), backend(), max_open=2) as live:
        live.engine.delay_s = 0.05
        threads = [threading.Thread(target=live.chat, kwargs={"max_tokens": 10}) for _ in range(2)]
        for thread in threads:
            thread.start()
        while live.service.limits.open < 2:
            time.sleep(0.005)
        answer = live.chat()
        assert answer.status == 429
        assert "retry-after" in answer.headers
        assert live.complete(["a", "b", "c"], max_tokens=1).status == 429
        for thread in threads:
            thread.join()
        assert live.chat(max_tokens=1).status == 200
        assert live.quiet()


def test_queue_timeout_is_a_429_before_a_stream_begins(live: Live) -> None:
    """What the engine says of a refusal arrives whole: status, field, short word, Retry-After."""
    live.engine.fail_after = 0
    live.engine.fail_code = 429
    for stream in (False, True):
        answer = live.chat(stream=stream)
        assert answer.status == 429
        assert answer.error["code"] == "overloaded"
        assert int(answer.headers["retry-after"]) >= 1


def test_engine_refusal_keeps_its_field(live: Live) -> None:
    live.engine.fail_after = 0
    live.engine.fail_code = 400
    live.engine.fail_param, live.engine.fail_name = "max_tokens", "kv_cache_exceeded"
    answer = live.complete("a", max_tokens=5)
    assert answer.status == 400
    assert (answer.error["param"], answer.error["code"]) == ("max_tokens", "kv_cache_exceeded")


def test_operators_limits_reach_headers_and_ids() -> None:
    few = LimitsConfig(max_headers=16, max_url_bytes=256, max_request_id_chars=8, max_n=2)
    with Live(config(limits=few), backend()) as live:
        pad = b"".join(b"X-%d: a\r\n" % index for index in range(20))
        assert status_of(live.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + pad + b"\r\n")) == 431
        assert status_of(live.raw(b"GET /" + b"a" * 300 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 414
        assert live.get("/health", X_Request_Id="a" * 8).headers["x-request-id"] == "a" * 8
        assert live.get("/health", X_Request_Id="a" * 9).headers["x-request-id"] != "a" * 9
        assert live.chat(n=2, max_tokens=1).status == 200
        assert live.chat(n=3, max_tokens=1).error["param"] == "n"


def test_health_answers_while_a_big_body_is_worked_on(live: Live) -> None:
    def worst() -> float:
        slowest = 0.0
        thread = threading.Thread(target=live.complete, args=("ab " * 1_500_000,))
        thread.start()
        while thread.is_alive():
            start = time.monotonic()
            assert live.get("/health").status == 200
            slowest = max(slowest, time.monotonic() - start)
        thread.join()
        return slowest

    # What blocks the loop does so every time; what else the machine does at one moment is gone at the next.
    assert any(worst() < 0.5 for _ in range(8))


def test_many_kept_alive_and_pipelined_requests(live: Live) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as sock:
        sock.sendall(one * 5)
        got = b""
        while got.count(b'{"status":"ok"}') < 5:
            got += sock.recv(65536)
        sock.sendall(one)
        assert b"200 OK" in sock.recv(65536)
