"""A server's life as a process: port first, probes while loading, ready, drain, end."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.base.errors import ConfigError
from octavo.serve.main import bind, url_of

SCRIPT = Path(__file__).parent / "fake_main.py"


class Process:
    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *args], stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.port = int(args[0])

    def line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def status(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def wait_for(self, path: str, status: int, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while self.status(path) != status:
            assert time.monotonic() < end, f"{path} never answered {status}"
            assert self.process.poll() is None
            time.sleep(0.05)

    def stream(self, max_tokens: int) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": max_tokens}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse()

    def end(self, seconds: float = 15.0) -> int:
        return self.process.wait(seconds)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start(free_port: int) -> Iterator[object]:
    made: list[Process] = []

    def make(*args: str) -> Process:
        made.append(Process(str(free_port), *args))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()
        assert one.process.stderr is not None
        one.process.stderr.close()


def test_probes_while_loading_then_ready_then_drain(start) -> None:  # type: ignore[no-untyped-def]
    server = start("slow")
    server.wait_for("/health", 200)
    assert server.status("/ready") == 503
    assert server.status("/v1/models") == 503
    line = server.line()
    assert re.match(rf"octavo: serving tiny, alias/of-it at http://127\.0\.0\.1:{server.port} \(ready after ", line)
    assert server.status("/ready") == 200
    reply = server.stream(20)
    assert reply.status == 200
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("/ready", 503)
    assert server.status("/v1/models") == 503
    assert reply.read().endswith(b"data: [DONE]\n\n")
    assert server.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_drains(start, number: int) -> None:  # type: ignore[no-untyped-def]
    """As `timeout` and a terminal send it to the group, and systemd to each process: streams end as they should."""
    server = start("engine")
    engine = int(server.line().removeprefix("engine "))
    server.line()
    reply = server.stream(40)
    os.killpg(server.process.pid, number)
    os.kill(engine, number)
    body = reply.read()
    assert body.endswith(b"data: [DONE]\n\n")
    assert b"error" not in body
    assert server.end() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(engine, 0)


def test_drain_ends_after_its_time(start) -> None:  # type: ignore[no-untyped-def]
    server = start("", "0.5")
    server.line()
    reply = server.stream(100_000)
    begin = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    assert b'"error"' in reply.read().rpartition(b"data: {")[2]  # an event, not a cut
    assert server.end() == 0
    assert time.monotonic() - begin < 4


def test_second_signal_ends_at_once(start) -> None:  # type: ignore[no-untyped-def]
    server = start("", "60")
    server.line()
    reply = server.stream(100_000)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("/ready", 503)
    server.process.send_signal(signal.SIGTERM)
    assert server.end(5) == 128 + signal.SIGTERM
    reply.close()


def test_signal_while_loading(start) -> None:  # type: ignore[no-untyped-def]
    server = start("slow")
    server.wait_for("/health", 200)
    server.process.send_signal(signal.SIGTERM)
    assert server.end(2) == 0


def test_start_failure_is_one_line_and_exit_1(start) -> None:  # type: ignore[no-untyped-def]
    server = start("broken")
    assert server.end() == 1
    assert server.process.stderr.read() == "octavo: unknown architecture 'Nonsense'; did you mean LlamaForCausalLM?\n"


def test_engine_death_ends_the_process(start) -> None:  # type: ignore[no-untyped-def]
    server = start("dies")
    server.line()
    assert server.end() == 1
    assert "engine has stopped for good: the engine" in server.process.stderr.read()


def test_port_in_use_fails_before_loading(start, free_port: int) -> None:  # type: ignore[no-untyped-def]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        taken.listen()
        server = start("slow")
        assert server.end(10) == 1
        assert re.fullmatch(r"octavo: cannot listen on .* port \d+: .*\n", server.process.stderr.read())


def test_bind_errors_are_one_line() -> None:
    with pytest.raises(ConfigError, match="no such address"):
        bind("no-such-host.invalid", 0)
    with pytest.raises(ConfigError, match="cannot listen"):
        bind("192.0.2.1", 0)


def test_port_zero_says_the_real_port() -> None:
    sock = bind("127.0.0.1", 0)
    assert url_of(sock, "127.0.0.1") == f"http://127.0.0.1:{sock.getsockname()[1]}"
    assert url_of(sock, "0.0.0.0").startswith("http://127.0.0.1:")
    sock.close()
