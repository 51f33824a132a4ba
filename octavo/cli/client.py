"""A small client of an OpenAI-compatible server, on the standard library: enough for a terminal."""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.base.address import http_parts
from octavo.base.errors import ConfigError, EngineError, UserError

MAX_LINE_BYTES = 16 << 20
MAX_REPLY_BYTES = 64 << 20


@dataclass(slots=True)
class Answer:
    """What a stream has brought so far, and when. Seconds count from the moment the request was sent."""

    text: str = ""
    tokens: int = 0  # as the server counts them
    prompt_tokens: int = 0
    finish_reason: str | None = None
    sent: float = field(default_factory=time.perf_counter)
    first: float | None = None
    last: float | None = None

    @property
    def ttft_s(self) -> float:
        """Seconds to the first text; to the end when no text came."""
        return (self.first or time.perf_counter()) - self.sent

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second after the first one; 0 when there were fewer than two."""
        if self.first is None or self.last is None or self.tokens < 2 or self.last <= self.first:
            return 0.0
        return (self.tokens - 1) / (self.last - self.first)

    def summary(self) -> str:
        """One line: time to first token, tokens, rate."""
        parts = [f"first token {self.ttft_s * 1e3:.0f} ms", f"{self.tokens} tokens"]
        if self.tokens_per_s:
            parts.append(f"{self.tokens_per_s:.1f} tok/s")
        if self.finish_reason not in (None, "stop"):
            parts.append(f"ended by {self.finish_reason}")
        return " · ".join(parts)


class Client:
    """Talks to one server. Each call opens its own connection, so that closing a stream aborts the request."""

    def __init__(self, url: str, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        parts = http_parts(url if "://" in url else f"http://{url}")
        if parts is None:
            raise ConfigError(f"not a server's address: {url[:80]!r}; expected http://HOST:PORT")
        self.url = url
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s

    def ready(self) -> bool:
        """Whether the server takes requests now."""
        with contextlib.closing(self._connect(timeout_s=2.0)) as connection:
            try:
                connection.request("GET", f"{self._prefix}/ready")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False

    def models(self) -> list[str]:
        """The names the server answers to."""
        reply = self._json("GET", "/v1/models")
        return [str(entry["id"]) for entry in reply.get("data", []) if isinstance(entry, dict) and "id" in entry]

    def text(self, path: str, method: str = "GET", timeout_s: float = 30.0) -> str:
        """A page as text. Raises UserError with the server's own words, EngineError without an answer."""
        with contextlib.closing(self._connect(timeout_s)) as connection:
            try:
                return self._send(connection, method, path, None).read(MAX_REPLY_BYTES).decode("utf-8", "replace")
            except (OSError, http.client.HTTPException) as error:
                raise EngineError(f"no answer from {self.url}: {error}") from None

    def command(self, path: str, timeout_s: float = 600.0) -> dict[str, Any]:
        """POST without a body: an operator's command. Raises UserError with the server's own words."""
        return self._json("POST", path, timeout_s)

    def stream(self, path: str, body: Mapping[str, Any], answer: Answer) -> Iterator[str]:
        """Pieces of text of a streamed chat or completion; `answer` is filled on the way.

        Raises UserError with the server's own words, EngineError when the connection breaks.
        """
        wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
        for event in self._events(path, wanted):
            if "error" in event:
                raise UserError(_error_text(event))
            usage = event.get("usage")
            if usage:
                answer.tokens, answer.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
            for choice in event.get("choices", []):
                answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
                piece = choice.get("text") or (choice.get("delta") or {}).get("content")
                if piece:
                    now = time.perf_counter()
                    answer.first, answer.last = answer.first or now, now
                    answer.text += piece
                    yield piece

    def _events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        connection = self._connect(self._timeout_s)
        try:
            response = self._send(connection, "POST", path, body)
            while line := response.readline(MAX_LINE_BYTES):
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield json.loads(data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineError(f"{self.url} broke off: {error}") from None
        finally:
            connection.close()

    def _json(self, method: str, path: str, timeout_s: float = 30.0) -> dict[str, Any]:
        try:
            reply = json.loads(self.text(path, method, timeout_s))
        except ValueError as error:
            raise EngineError(f"no answer from {self.url}: {error}") from None
        return reply if isinstance(reply, dict) else {}

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None
    ) -> http.client.HTTPResponse:
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, self._prefix + path, payload, self._headers)
        except ConnectionRefusedError:
            raise EngineError(f"no server answers at {self.url}; start one with: octavo serve MODEL") from None
        response = connection.getresponse()
        if response.status != 200:
            raise UserError(_reply_text(response.status, response.read(MAX_REPLY_BYTES)))
        return response

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=timeout_s)


def _reply_text(status: int, raw: bytes) -> str:
    try:
        return f"{_error_text(json.loads(raw))} (HTTP {status})"
    except (ValueError, TypeError, AttributeError):
        return f"the server answered HTTP {status}"


def _error_text(event: Mapping[str, Any]) -> str:
    error = event.get("error")
    return str(error.get("message") if isinstance(error, dict) else error)
