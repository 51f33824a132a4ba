"""From a configuration to a running backend: files, tokenizer and template here, weights in the engine's process."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from octavo.base.config import ModelConfig, OctavoConfig, ServeConfig
from octavo.base.errors import ConfigError
from octavo.base.wire import Vocabulary
from octavo.engine.client import EngineClient
from octavo.serve.calls import Backend
from octavo.text.chat import MAX_SOURCE_CHARS, ChatTemplate, load_chat
from octavo.text.defaults import Defaults, read_defaults
from octavo.text.parse.speech import Speech
from octavo.text.request import Limits, TextProcessor
from octavo.text.structured import vocabulary_of
from octavo.text.tokenizer import Tokenizer, load_tokenizer
from octavo.weights.facts import ModelFiles, read_model

T = TypeVar("T")


async def launch(config: OctavoConfig) -> Backend:
    """Loads the model. Raises ConfigError, ModelFileError or EngineError, each in one line.

    Files first, since a download must not run twice; then tokenizer and weights side by side.
    """
    files = await in_thread(lambda: read_model(config.engine.model))
    text = asyncio.create_task(in_thread(lambda: _text(config.engine.model, config.serve, files)))
    try:
        serve = config.serve
        engine = await EngineClient.launch(config.engine, log_level=serve.log_level, log_format=serve.log_format)
    except BaseException:
        text.cancel()
        raise
    try:
        tokenizer, template, defaults, speech, vocabulary = await text
        if vocabulary is not None:
            engine.provide(vocabulary)
    except BaseException:
        await engine.close()
        raise
    limits = Limits(engine.ready.max_model_len, engine.ready.vocab_size)
    seed = config.engine.model.seed
    return Backend(engine, TextProcessor(tokenizer, template, limits, defaults, seed=seed, speech=speech))


def _text(
    config: ModelConfig, serve: ServeConfig, files: ModelFiles
) -> tuple[Tokenizer, ChatTemplate | None, Defaults, Speech, Vocabulary | None]:
    tokenizer = load_tokenizer(files)
    templates = tokenizer.templates
    if config.chat_template is not None:
        templates = {"default": _read_template(config.chat_template)}
    template = load_chat(templates, tokenizer.special_texts, tokenizer.special)
    defaults = read_defaults(files.generation_config) if config.generation_config == "auto" else Defaults()
    source = "\n".join(templates.values())
    speech = Speech(tokenizer, source, tool_parser=serve.tool_call_parser, reasoning_parser=serve.reasoning_parser)
    return tokenizer, template, defaults, speech, vocabulary_of(tokenizer)


def _read_template(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(MAX_SOURCE_CHARS + 1)
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else "is not UTF-8 text"
        raise ConfigError(f"--chat-template {path}: {reason.lower()}") from None


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
