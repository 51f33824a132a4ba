"""The server under test: app, uvicorn, fake engine, tiny tokenizer; and a plain HTTP client."""

import asyncio
import http.client
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

import msgspec
from api_textkit import text_processor

from octavo.base.config import EngineConfig, ModelConfig, OctavoConfig, ServeConfig
from octavo.serve.app import App
from octavo.serve.batches.runner import resume
from octavo.serve.calls import Backend, Service
from octavo.serve.limits import Limits
from octavo.serve.main import bind
from octavo.serve.server import HttpServer
from octavo.testing.fake_engine import FakeEngine

MODEL = "tiny"


def config(**serve: Any) -> OctavoConfig:
    model = ModelConfig(model="/nowhere/tiny", served_model_name=[MODEL, "alias/of-it"])
    serve = {"no_response_store": "response_store" not in serve, "no_files": "files_dir" not in serve, **serve}
    return OctavoConfig(engine=EngineConfig(model=model), serve=ServeConfig(port=0, shutdown_timeout=2.0, **serve))


def backend(max_model_len: int = 2048) -> Backend:
    text = text_processor(max_model_len)
    return Backend(FakeEngine(text.tokenizer.vocab_size, max_model_len), text)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The data of an event stream; "[DONE]" as it stands."""
        found = []
        for block in self.body.decode().split("\n\n"):
            for line in block.split("\n"):
                if line.startswith("data: "):
                    data = line[6:]
                    found.append(data if data == "[DONE]" else json.loads(data))
        return found


class Live:
    """A server in a thread. Use as a context manager."""

    def __init__(self, conf: OctavoConfig, back: Backend | None, max_open: int = 2048) -> None:
        self.service = Service(conf, Limits(conf.serve, max_open))
        self.app = App(self.service)
        self.engine: Any = back.engine if back else None
        self.tokenizer: Any = back.text.tokenizer if back else None
        if back:
            self.service.attach(back)
        self._sock = bind("127.0.0.1", 0)
        self.port = self._sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = HttpServer(self.app, lambda: setattr(self.service, "draining", True))
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self.server.serve(sockets=[self._sock]))
        self.loop.close()

    def __enter__(self) -> "Live":
        self._thread.start()
        while not self.server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self.service.jobs.end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.server.stop)
        self._thread.join(10)
        self.service.close()

    def stop_jobs(self) -> None:
        """What a server does at its end, before its engine goes."""
        self.service.draining = True
        asyncio.run_coroutine_threadsafe(self.service.jobs.end(), self.loop).result(10)

    def resume(self) -> None:
        """What a server does once its model is loaded."""
        asyncio.run_coroutine_threadsafe(resume(self.service), self.loop).result(10)

    def reset(self) -> None:
        fresh = FakeEngine(self.engine.ready.vocab_size, self.engine.ready.max_model_len)
        self.engine.__dict__.update(fresh.__dict__)
        self.engine.next_token = self.engine._pseudo_random

    def quiet(self, seconds: float = 30.0) -> bool:
        """Whether all sequences end and all room is given back within the time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not self.engine.open and self.service.limits.open == 0:
                return True
            time.sleep(0.01)
        return False

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 20.0
    ) -> Answer:
        """One request on a connection of its own; `body` is sent as JSON unless it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {} if data is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, path, data, {**sent, **(headers or {})})
            reply = connection.getresponse()
            return Answer(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.call("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, None, {name.replace("_", "-"): value for name, value in headers.items()})

    def raw(self, data: bytes, timeout: float = 5.0) -> bytes:
        """Bytes in, all bytes out until the server closes or `timeout` passes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as sock:
            sock.sendall(data)
            got = b""
            try:
                while part := sock.recv(65536):
                    got += part
            except (TimeoutError, ConnectionResetError):
                pass
            return got

    def chat(self, content: str = "hello", **fields: Any) -> Answer:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    def complete(self, prompt: Any = "hello", **fields: Any) -> Answer:
        return self.post("/v1/completions", {"prompt": prompt, **fields})
