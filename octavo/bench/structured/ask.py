"""Questions to a running server, many at once."""

import http.client
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")
R = TypeVar("R")
CHAT = "/v1/chat/completions"


class Reply(Struct, frozen=True):
    """What came back. `seconds` from sending to the last byte."""

    status: int
    body: Any
    seconds: float

    @property
    def message(self) -> str:
        """The error's text; empty without one."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return str(error.get("message", "")) if isinstance(error, dict) else ""


class Stream(Struct):
    """What a stream has brought, and when."""

    text: str = ""
    arrivals: list[float] = []

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]


class Asker:
    """Sends to one server, each question on a connection of its own."""

    def __init__(self, port: int, at_once: int = 16, timeout_s: float = 300.0) -> None:
        self.port = port
        self.at_once = at_once
        self._timeout_s = timeout_s

    def ask(self, body: Any, path: str = CHAT) -> Reply:
        """`body` is sent as JSON unless it is bytes. Raises OSError when no answer comes."""
        begin = time.perf_counter()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self._timeout_s)
        try:
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        try:
            content = json.loads(raw)
        except ValueError:
            content = raw[:200].decode("utf-8", "replace")
        return Reply(response.status, content, time.perf_counter() - begin)

    def stream(self, body: dict[str, Any]) -> "Stream":
        """A streamed completion: its text and when each piece came. Raises OSError, ValueError for an error."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self._timeout_s)
        found = Stream()
        try:
            connection.request("POST", CHAT, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            while line := response.readline():
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise ValueError(event["error"]["message"])
                    for choice in event["choices"]:
                        if piece := choice["delta"].get("content"):
                            found.text += piece
                            found.arrivals.append(time.perf_counter())
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}")
        return found

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`work` for all items, `at_once` at a time; results in order."""
        with ThreadPoolExecutor(self.at_once) as threads:
            return list(threads.map(work, items))
