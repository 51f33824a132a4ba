"""What the API process spends on a token of a stream, from the engine's output to the bytes: no engine, no socket."""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo.base.config import EngineConfig, ModelConfig, OctavoConfig, ServeConfig
from octavo.base.wire import EngineRequest, EngineStats, Ready, TokenOutput
from octavo.bench.standin import write_tokenizer
from octavo.engine.life import Survival
from octavo.engine.stream import Mailbox, Stream
from octavo.serve.app import App
from octavo.serve.calls import Backend, Service
from octavo.serve.http11 import CONNECTION
from octavo.serve.limits import Limits as Admission
from octavo.text.request import Limits, TextProcessor
from octavo.text.tokenizer import from_folder

VOCAB = 32_768
MAX_LEN = 8192
TURNS = 4  # of the loop, for the tasks that have something to do


class _Engine:
    """Hands out streams, and lets all of them have a token."""

    def __init__(self) -> None:
        self.ready = Ready(MAX_LEN, VOCAB, 0, 16, 0, 0, [])
        self.stats = EngineStats()
        self.still_s = 0.0
        self.restarting = False
        self.survival = Survival()
        self.on_step: Callable[[EngineStats], None] = lambda _: None
        self.mailboxes: dict[str, Mailbox] = {}

    def submit(self, request: EngineRequest) -> Stream:
        mailbox = self.mailboxes[request.id] = Mailbox()
        return Stream(request.id, mailbox, lambda _: None)

    def step(self, token: int, finish: str | None = None) -> None:
        """The first and the last token of a stream come with more to say, as from an engine."""
        for id, mailbox in self.mailboxes.items():
            if token and finish is None:
                mailbox.put_tokens(id, [token])
            else:
                mailbox.put(TokenOutput(id, [token], finish))

    async def control(self, command: str, *, timeout_s: float = 0.0, **args: object) -> bool:
        """It obeys, and does nothing."""
        del command, timeout_s, args
        return True

    def check(self) -> None:
        """It never dies."""

    async def close(self) -> None:
        """It holds nothing."""


def token_seconds(streams: int, steps: int) -> float:
    """CPU seconds of this process for a token, the least of three runs."""
    with tempfile.TemporaryDirectory() as folder, _app(Path(folder)) as (app, engine):
        return min(asyncio.run(_run(app, engine, streams, steps)) for _ in range(3))


@contextmanager
def _app(folder: Path) -> Iterator[tuple[App, _Engine]]:
    serve = ServeConfig(no_response_store=True, no_files=True)
    config = OctavoConfig(engine=EngineConfig(model=ModelConfig(model="standin")), serve=serve)
    service = Service(config, Admission(serve, 1 << 16))
    engine = _Engine()
    tokenizer = from_folder(write_tokenizer(folder, VOCAB))
    service.attach(Backend(engine, TextProcessor(tokenizer, None, Limits(MAX_LEN, VOCAB))))
    try:
        yield App(service), engine
    finally:
        service.close()


async def _run(app: App, engine: _Engine, streams: int, steps: int) -> float:
    engine.mailboxes.clear()
    body = json.dumps({"prompt": [1] * 64, "max_tokens": steps + 2, "stream": True, "temperature": 0}).encode()
    written = [0]
    tasks = [asyncio.create_task(app(_scope(body, written), _receiver(body), _sender(written))) for _ in range(streams)]
    while len(engine.mailboxes) < streams:
        await asyncio.sleep(0.001)
    engine.step(0)
    await _turns()
    begin, before = time.process_time(), written[0]
    for step in range(steps):
        engine.step(1 + step % 1000)
        await _turns()
    took = time.process_time() - begin
    if written[0] - before < streams * steps:
        raise RuntimeError(f"{written[0] - before} parts were written of {streams} streams of {steps} tokens")
    engine.step(0, "length")
    await asyncio.gather(*tasks)
    return took / (streams * steps)


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _scope(body: bytes, written: list[int]) -> dict[str, Any]:
    def write(part: bytes) -> bool:
        written[0] += bool(part)
        return True

    length = str(len(body)).encode()
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "root_path": "",
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", length)],
        "extensions": {CONNECTION: {"abort": lambda: None, "paused": lambda: False, "write": write}},
    }


def _receiver(body: bytes) -> Any:
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    return receive


def _sender(written: list[int]) -> Any:
    async def send(message: dict[str, Any]) -> None:
        written[0] += bool(message.get("body"))

    return send
