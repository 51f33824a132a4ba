"""A request that is over is gone: nothing of it waits for the garbage collector.

What does wait grows with the load until the next full collection, whose size nobody bounds, and each of those holds
every stream up.
"""

import gc
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from api_live import Live
from kept import keeping

HELLO = [{"role": "user", "content": "hello"}]
TIMES = 5
OURS = ("octavo.", "uvicorn.", "starlette.", "msgspec.")


def vanish(live: Live, sent: int | None = None) -> None:
    """A stream that is reset once it has begun; with `sent`, a request of which only so many bytes come."""
    body = b'{"prompt": "hello", "max_tokens": 200, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as sock:
        sock.sendall((head + b"Content-Length: %d\r\n\r\n" % len(body) + body)[:sent])
        if sent is None:
            assert sock.recv(100)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def slow(live: Live) -> None:
    """A stream that reaches its deadline."""
    live.engine.delay_s = 0.05
    live.post("/v1/completions", {"prompt": "hello", "max_tokens": 500, "stream": True, "timeout": 0.2})
    live.engine.delay_s = 0.0


def cancelled(live: Live) -> None:
    """A response in the background that is cancelled."""
    live.engine.delay_s = 0.02
    begun = live.post("/v1/responses", {"input": "hello", "background": True, "max_output_tokens": 500})
    assert live.post(f"/v1/responses/{begun.json['id']}/cancel", {}).status == 200
    live.engine.delay_s = 0.0


def batch(live: Live) -> None:
    """A batch of one line, from its file to its end."""
    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 3}}'
    kind = {"Content-Type": "application/octet-stream"}
    file = live.call("POST", "/v1/files?purpose=batch&filename=in.jsonl", line, kind).json["id"]
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    id = live.post("/v1/batches", body).json["id"]
    while live.get(f"/v1/batches/{id}").json["status"] != "completed":
        time.sleep(0.01)


def slow_ones(live: Live) -> None:
    """Choices that reach their deadline together."""
    live.engine.delay_s = 0.05
    live.complete(n=3, max_tokens=500, timeout=0.2)
    live.engine.delay_s = 0.0


def faulty(live: Live, **fields: Any) -> None:
    """An engine that fails in the middle of an answer."""
    live.engine.fail_after = 3
    live.complete(max_tokens=9, **fields)
    live.engine.fail_after = None


ASKS: dict[str, Callable[[Live], Any]] = {
    "health": lambda live: live.get("/health"),
    "metrics": lambda live: live.get("/metrics"),
    "nowhere": lambda live: live.get("/nowhere"),
    "malformed": lambda live: live.raw(b"no HTTP\r\n\r\n", timeout=0.1),
    "pipelined": lambda live: live.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3, timeout=0.1),
    "bad JSON": lambda live: live.post("/v1/completions", b"{"),
    "bad value": lambda live: live.complete(temperature=-1),
    "too long": lambda live: live.complete("x" * 100_000),
    "whole": lambda live: live.complete(logprobs=2),
    "many": lambda live: live.complete(["one", "two"], n=3),
    "stream": lambda live: live.complete(stream=True),
    "streams": lambda live: live.complete(stream=True, n=3),
    "deadline": slow,
    "deadline of many": slow_ones,
    "fault": faulty,
    "fault in a stream": lambda live: faulty(live, stream=True),
    "faults": lambda live: faulty(live, n=3),
    "faults in streams": lambda live: faulty(live, n=3, stream=True),
    "vanished": vanish,
    "cut short": lambda live: vanish(live, 120),
    "cut in the head": lambda live: vanish(live, 50),
    "chat": lambda live: live.chat(max_tokens=20),
    "chat stream": lambda live: live.chat(max_tokens=20, stream=True),
    "chat schema": lambda live: live.chat(max_tokens=20, response_format={"type": "json_object"}),
    "messages": lambda live: live.post("/v1/messages", {"messages": HELLO, "max_tokens": 20}),
    "messages stream": lambda live: live.post("/v1/messages", {"messages": HELLO, "max_tokens": 20, "stream": True}),
    "responses": lambda live: live.post("/v1/responses", {"input": "hello", "max_output_tokens": 20}),
    "responses stream": lambda live: live.post("/v1/responses", {"input": "hello", "stream": True}),
    "tokenize": lambda live: live.post("/tokenize", {"prompt": "hello"}),
}
KEPT: dict[str, Callable[[Live], Any]] = {
    "response": lambda live: live.post("/v1/responses", {"input": "hello", "max_output_tokens": 20}),
    "background": lambda live: live.post("/v1/responses", {"input": "hello", "background": True}),
    "background stream": lambda live: live.post(
        "/v1/responses", {"input": "hello", "background": True, "stream": True}
    ),
    "cancelled": cancelled,
    "batch": batch,
}


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No collections but those that are asked for."""
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def left(live: Live, ask: Callable[[Live], Any]) -> list[str]:
    """What of the server's a full collection finds after some asking: one of a kind for each time at least, since what
    other tests began may end meanwhile."""
    for _ in range(3):  # the first fill what is cached
        ask(live)
        assert live.quiet()
    settle(live)
    gc.collect()
    for _ in range(TIMES):
        ask(live)
        assert live.quiet()
    settle(live)
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    names = Counter(name(each) for each in gc.garbage)
    gc.garbage.clear()
    return [each for each, count in names.items() if each.startswith(OURS) and count >= TIMES]


def settle(live: Live) -> None:
    """Until the loop has seen the ends of what was asked: the last connection goes behind its answer."""
    for _ in range(5):
        assert live.get("/health").status == 200


def name(thing: Any) -> str:
    if isinstance(thing, FrameType):
        return f"{thing.f_globals.get('__name__')}.{thing.f_code.co_name}"
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.usefixtures("uncollected")
def test_a_request_leaves_no_garbage(live: Live, ask: Callable[[Live], Any]) -> None:
    assert left(live, ask) == []


@pytest.mark.parametrize("ask", KEPT.values(), ids=KEPT)
@pytest.mark.usefixtures("uncollected")
def test_nor_does_one_that_is_kept(tmp_path: Path, ask: Callable[[Live], Any]) -> None:
    with keeping(tmp_path) as live:
        assert left(live, ask) == []
