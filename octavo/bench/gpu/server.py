"""`octavo serve` as its users start it: a process, measured from outside. No torch."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from typing import Any

from octavo.base.errors import EngineError
from octavo.bench.data import even
from octavo.bench.gpu.setting import Setting, kernel_caches, model_folder
from octavo.bench.hardware import free_port
from octavo.bench.raw import Found, Group, Orders, send

NAME = "bench"
PATH = "/v1/completions"
POLL_S = 0.01
STOP_WAIT_S = 15.0
EVEN, EVEN_FACTOR, EVEN_SLACK_S = 6, 1.5, 0.004  # so many answers in a row, none slower than this beside the fastest


class Server:
    """A served model of random weights. `start` returns the seconds to the first token over HTTP."""

    def __init__(self, setting: Setting, shape: str) -> None:
        self._setting = setting
        self._folder = model_folder(shape, setting.folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = 0
        self.port = 0

    def start(self, cap_s: float) -> float:
        """Start it and ask for a token. Raises EngineError when none came within `cap_s` seconds."""
        self.port = free_port()
        begin = time.perf_counter()
        # It follows its standard input to the grave, so it cannot outlive us.
        self._process = subprocess.Popen(self._argv(), stdin=subprocess.PIPE, stdout=2, env=self._environment())
        while not self._ready():
            if self._process.poll() is not None:
                raise EngineError(f"the server ended with exit code {self._process.returncode}")
            if time.perf_counter() - begin > cap_s:
                raise EngineError(f"the server was not ready after {cap_s:g} s")
            time.sleep(POLL_S)
        self._first_text()
        return time.perf_counter() - begin

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def settle(self, cap_s: float, pause_s: float) -> float:
        """Seconds until a lone request is answered evenly: what the server still prepared in quiet moments is done."""
        begin = time.perf_counter()
        times: list[float] = []
        while time.perf_counter() - begin < cap_s:
            times.append(self._first_text())
            if len(times) >= EVEN and max(times[-EVEN:]) <= EVEN_FACTOR * min(times) + EVEN_SLACK_S:
                break
            time.sleep(pause_s)
        return time.perf_counter() - begin

    def stop(self) -> None:
        """Let it end in order, then end it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.terminate()
        process.stdin.close()
        try:
            process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def send(self, *groups: Group, stop_s: float = 600.0) -> Found:
        """Send groups from the load client's process."""
        return send(Orders(host="127.0.0.1", port=self.port, path=PATH, groups=list(groups), stop_s=stop_s))

    def _argv(self) -> list[str]:
        options = {**self._setting.engine(), "port": self.port, "host": "127.0.0.1", "served_model_name": NAME}
        options |= {"log_level": "warning", "shutdown_timeout": 1}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        return [sys.executable, "-m", "octavo.cli.attached", "serve", str(self._folder), *flags]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **kernel_caches(self._setting.folder)}

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2.0)
            connection.request("GET", "/ready")
            status = connection.getresponse().status
            connection.close()
            return status == 200
        return False

    def _first_text(self) -> float:
        """Seconds to the first text of a short request. Raises EngineError when none comes."""
        self._asked += 1
        begin = time.perf_counter()
        prompt = even(1, 8, 1, seed=self._asked).prompts[0]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120.0)
        connection.request("POST", PATH, json.dumps(body(prompt, 2)), {"Content-Type": "application/json"})
        response = connection.getresponse()
        while line := response.readline():
            if b'"text":"' in line and b'"text":""' not in line:
                connection.close()
                return time.perf_counter() - begin
        raise EngineError(f"the server answered HTTP {response.status} without text")


def body(prompt: Any, length: int) -> dict[str, Any]:
    """A streamed completion of exactly `length` tokens."""
    return {
        "model": NAME,
        "prompt": prompt,
        "max_tokens": length,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def bodies(count: int, input_len: int, output_len: int, *, seed: int) -> list[dict[str, Any]]:
    """Requests that share no prefix with those of another seed."""
    load = even(count, input_len, output_len, seed=seed)
    return [body(prompt, length) for prompt, length in zip(load.prompts, load.output_lens)]
