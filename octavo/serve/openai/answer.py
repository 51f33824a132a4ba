"""One answer from one generation, whole or streamed, from the same pieces through the same code.

A dialect (chat, completions) says how a choice looks; this file says when what is sent.
"""

import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect

from octavo.base.errors import OctavoError, UserError
from octavo.base.wire import EngineRequest, TokenLogprobs
from octavo.serve.calls import Backend, Call, Reply
from octavo.serve.errors import failure
from octavo.serve.generate import Generation, Piece, bounded
from octavo.serve.openai.schema import Sampled
from octavo.serve.openai.usage import Usage
from octavo.serve.sse import EventStream
from octavo.text.collect import Collector, TextDelta

log = logging.getLogger("octavo.serve")
encode = msgspec.json.encode


@dataclass(slots=True)
class Choice:
    """What has come of one choice so far."""

    index: int
    request: EngineRequest
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    begun: bool = False  # the first chunk of a stream went out

    def add(self, piece: Piece) -> None:
        delta = piece.delta
        if piece.prompt_logprobs:
            self.prompt_logprobs.extend(piece.prompt_logprobs)
        if delta.text:
            self.text.append(delta.text)
        self.tokens.extend(delta.tokens)
        if delta.logprobs:
            self.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


class Dialect(Protocol):
    """How one endpoint writes choices."""

    prefix: str  # of the answer's id
    whole_object: str
    chunk_object: str
    hides_output: bool  # shows the prompt alone; the engine made a token because it cannot make none

    def choice(self, choice: Choice) -> dict[str, Any]:
        """A finished choice of a whole answer."""
        ...

    def top_level(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Fields of a whole answer beside the choices."""
        ...

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        """The choice object of a stream's first chunk, sent before any token of it."""
        ...

    def text_key(self) -> tuple[bytes, bytes]:
        """What stands round the text in a chunk's choice object, between ``"index":N,`` and ``"logprobs"``."""
        ...

    def delta_logprobs(self, choice: Choice, piece: Piece) -> Any:
        """The ``logprobs`` value of a chunk; None without."""
        ...


@dataclass(frozen=True)
class Options:
    """How the caller wants the answer sent."""

    stream: bool = False
    usage_at_end: bool = False
    usage_always: bool = False
    token_ids: bool = False

    @classmethod
    def of(cls, body: Sampled) -> "Options":
        """UserError for stream options without a stream."""
        stream, options = bool(body.stream), body.stream_options
        if options is not None and not stream:
            raise UserError("stream_options needs stream: true.", param="stream_options", code="invalid_value")
        always = bool(options and options.continuous_usage_stats)
        at_end = bool(options and options.include_usage)
        return cls(stream, at_end, always and at_end, bool(body.return_token_ids))


class Answer:
    """Runs the sequences of one request and sends what comes."""

    def __init__(
        self,
        call: Call,
        backend: Backend,
        dialect: Dialect,
        sequences: Sequence[tuple[EngineRequest, Collector]],
        choices_per_prompt: int,
        model: str,
        options: Options,
    ) -> None:
        self._call = call
        self._dialect = dialect
        self._options = options
        self._sequences = sequences
        self._backend = backend
        self._choices = [Choice(index, request) for index, (request, _) in enumerate(sequences)]
        prompts = [len(request.tokens) for request, _ in sequences[::choices_per_prompt]]
        self._usage = Usage(prompts, choices_per_prompt)
        self._head = {"id": f"{dialect.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    async def run(self) -> Reply | None:
        """A whole answer, or None once a stream has been sent. Raises only before the first byte went out."""
        call, service = self._call, self._call.service
        with service.limits.admitted(len(self._sequences)):
            generation = Generation(self._backend.engine, service.metrics, self._sequences, call.arrival)
            if self._options.stream:
                await self._stream(generation)
                return None
            async with bounded_call(call), generation:
                async for pieces in generation.steps():
                    self._add(pieces)
        return Reply(encode(self._whole()))

    def _add(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._hide(piece)
            self._choices[piece.index].add(piece)
            self._usage.add(piece)

    def _whole(self) -> dict[str, Any]:
        return {
            **self._head,
            "object": self._dialect.whole_object,
            "choices": [self._with_ids(self._dialect.choice(choice), choice) for choice in self._choices],
            "usage": self._usage.as_dict(),
            **self._dialect.top_level(self._choices),
        }

    def _with_ids(self, rendered: dict[str, Any], choice: Choice) -> dict[str, Any]:
        if self._options.token_ids:
            rendered["token_ids"] = choice.tokens
            rendered["prompt_token_ids"] = choice.request.tokens
        return rendered

    async def _stream(self, generation: Generation) -> None:
        """The answer begins with the first step, so that what fails before it still has its status."""
        events = EventStream(self._call.scope, self._call.send)
        chunks = _Chunks(self._dialect, self._head, self._options, self._usage)
        try:
            async with bounded_call(self._call), generation:
                async for pieces in generation.steps():
                    out = b"".join([chunks.render(self._advance(piece), piece) for piece in pieces])
                    if not out:
                        continue
                    if not events.started:
                        await events.start(self._call.headers)
                    await events.write(out)
        except ClientDisconnect:
            raise
        except Exception as exc:
            if not events.started:
                raise
            if not isinstance(exc, OctavoError):
                log.error("request %s failed in its stream", self._call.request_id, exc_info=exc)
            await events.fail(failure(exc))
            return
        await events.finish(chunks.usage_event() if self._options.usage_at_end else b"")

    def _advance(self, piece: Piece) -> Choice:
        """Keeps of a streamed choice only what later chunks need."""
        self._hide(piece)
        choice = self._choices[piece.index]
        if piece.prompt_logprobs:
            choice.prompt_logprobs.extend(piece.prompt_logprobs)
        self._usage.add(piece)
        return choice

    def _hide(self, piece: Piece) -> None:
        if self._dialect.hides_output:
            finish = None if piece.delta.finish_reason is None else "length"
            piece.delta = TextDelta(text="", tokens=[], logprobs=None, finish_reason=finish)


class _Chunks:
    """Renders chunks of one stream. All but the text of a plain chunk is bytes made once."""

    def __init__(self, dialect: Dialect, head: dict[str, Any], options: Options, usage: Usage) -> None:
        self._dialect = dialect
        self._options = options
        self._usage = usage
        self._open = b"data: " + encode({**head, "object": dialect.chunk_object})[:-1] + b',"choices":['
        self._before, self._after = dialect.text_key()
        self._tail = b'],"usage":null}\n\n' if options.usage_at_end else b"]}\n\n"
        self._plain_end = self._after + b',"logprobs":null,"finish_reason":null}'
        self._starts: dict[int, bytes] = {}

    def render(self, choice: Choice, piece: Piece) -> bytes:
        """The events of one piece; empty when it has nothing to show."""
        delta = piece.delta
        if not (delta.tokens or delta.text or delta.finish_reason):
            return b""
        opening = b"" if choice.begun else self._opening(choice)
        logprobs = self._dialect.delta_logprobs(choice, piece)
        if not delta.text and delta.finish_reason is None and logprobs is None and not self._options.token_ids:
            return opening  # the text is held back: half a character, or what may become a stop string
        start = self._starts.get(piece.index) or self._start(piece.index)
        if delta.finish_reason is None and logprobs is None and not self._options.token_ids:
            return opening + start + encode(delta.text) + self._plain_end + self._end()
        rest = {"logprobs": logprobs, "finish_reason": delta.finish_reason}
        if delta.finish_reason is not None:
            rest["stop_reason"] = delta.stop_reason
        if self._options.token_ids:
            rest["token_ids"] = delta.tokens
        return opening + start + encode(delta.text) + self._after + b"," + encode(rest)[1:] + self._end()

    def usage_event(self) -> bytes:
        """The chunk without choices that ends a stream with include_usage."""
        return self._open + b'],"usage":' + self._usage.as_json() + b"}\n\n"

    def _opening(self, choice: Choice) -> bytes:
        choice.begun = True
        rendered = self._dialect.opening(choice)
        if self._options.token_ids:
            rendered = rendered or {"index": choice.index, **self._empty(), "logprobs": None, "finish_reason": None}
            rendered["prompt_token_ids"] = choice.request.tokens
        return b"" if rendered is None else self._open + encode(rendered) + self._end()

    def _empty(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(b"{" + self._before + b'""' + self._after + b"}")
        return found

    def _start(self, index: int) -> bytes:
        made = self._open + b'{"index":%d,' % index + self._before
        self._starts[index] = made
        return made

    def _end(self) -> bytes:
        if self._options.usage_always:
            return b'],"usage":' + self._usage.as_json() + b"}\n\n"
        return self._tail


def bounded_call(call: Call) -> AbstractAsyncContextManager[None]:
    """What a handler awaits inside ends when the client leaves or when the request's time is over."""
    limit = call.service.config.serve.request_timeout
    return bounded(call.receive, limit, max(0.0, call.arrival + limit - time.monotonic()))
