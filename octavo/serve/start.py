"""From a configuration to a running backend: files, tokenizer and template here, weights in the engine's process."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from octavo.base.config import OctavoConfig
from octavo.engine.client import EngineClient
from octavo.platform.lean_torch import no_gpu
from octavo.serve.calls import Backend
from octavo.text.load import TextSide, load_text
from octavo.text.request import Limits
from octavo.weights.facts import ModelFiles, read_model

log = logging.getLogger("octavo.serve")

AFTER_FIRST_S = 0.5  # from the start's end: the first answer comes before what the first schema needs

T = TypeVar("T")


async def launch(config: OctavoConfig) -> Backend:
    """Loads the model. Raises ConfigError, ModelFileError or EngineError, each in one line.

    Files first, since a download must not run twice; then tokenizer and weights side by side.
    """
    phases: dict[str, float] = {}
    with _timed("find_files", phases):
        files = await in_thread(lambda: read_model(config.engine.model))
    text = asyncio.create_task(in_thread(lambda: _load(config, files, phases)))
    try:
        serve = config.serve
        with _timed("engine_process", phases):
            engine = await EngineClient.launch(
                config.engine, recovery=serve.recovery, log_level=serve.log_level, log_format=serve.log_format
            )
    except BaseException:
        text.cancel()
        raise
    try:
        limits = Limits(engine.ready.max_model_len, engine.ready.vocab_size, config.serve.limits.queue_timeout)
        processor = (await text).processor(limits)
        if processor.vocabulary is not None:
            engine.provide(processor.vocabulary)
            if engine.ready.device != "cpu":  # there memory and the first answer count for more than the first schema
                await in_thread(processor.vocabulary)
                engine.provide_later(AFTER_FIRST_S)
    except BaseException:
        await engine.close()
        raise
    return Backend(engine, processor, phases)


def _load(config: OctavoConfig, files: ModelFiles, phases: dict[str, float]) -> TextSide:
    serve = config.serve
    with _timed("tokenizer", phases):
        side = load_text(
            files, config.engine.model, tool_parser=serve.tool_call_parser, reasoning_parser=serve.reasoning_parser
        )
    if side.vocabulary is not None and config.engine.device.device != "cpu" and not no_gpu():
        side.vocabulary()  # the engine will be told at once, and this process has nothing else to do until then
    return side


@contextmanager
def _timed(name: str, phases: dict[str, float]) -> Iterator[None]:
    """Notes how long a phase of the start took; the engine times its own, inside of engine_process."""
    begin = time.monotonic()
    yield
    phases[name] = round(time.monotonic() - begin, 3)
    log.info("%s took %.2f s", name, phases[name])


async def in_thread(call: Callable[[], T]) -> T:
    """Runs `call` in a daemon thread: a signal in the middle of a long download must end the process at once."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as exc:
            error = exc
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            return  # the loop has ended; nobody waits any more

    threading.Thread(target=work, name="octavo-start", daemon=True).start()
    return await done
