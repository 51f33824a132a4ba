"""One answer from one generation, whole or streamed, from the same deltas of the same collectors.

A dialect (chat, completions) says how a choice looks; this file says when what is sent.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from octavo.base.errors import bad_value
from octavo.serve.calls import Backend, Call, Reply
from octavo.serve.generate import Generation, Piece, bounded
from octavo.serve.openai.chunks import Chunks, Options
from octavo.serve.openai.dialect import Dialect
from octavo.serve.openai.prepare import named_positions
from octavo.serve.openai.schema import Sampled
from octavo.serve.openai.usage import usage_of
from octavo.serve.sse import EventStream
from octavo.serve.turns import Listener, Step
from octavo.text.collect import Collector, TextDelta
from octavo.text.request import Prepared


def options_of(body: Sampled) -> Options:
    """How the answer is to be sent. UserError for stream options without a stream."""
    stream, given = bool(body.stream), body.stream_options
    if given is not None and not stream:
        raise bad_value("stream_options", "needs stream: true")
    at_end = bool(given and given.include_usage)
    always = at_end and bool(given and given.continuous_usage_stats)
    return Options(stream, at_end, always, bool(body.return_token_ids))


BYTES_A_POSITION = 64  # of a log-probability, about: decides whether a whole answer is written off the event loop


class Answer:
    """Runs the sequences of one request and sends what comes."""

    def __init__(
        self,
        call: Call,
        backend: Backend,
        dialect: Dialect,
        prepared: Sequence[Prepared],
        head: dict[str, Any],
        options: Options,
    ) -> None:
        """`prepared`: one a prompt, all with as many choices. `head`: id and model, as every object carries them."""
        self._call = call
        self._backend = backend
        self._dialect = dialect
        self._requests = [replace(request, tenant=call.tenant) for each in prepared for request in each.requests]
        self._collectors = [collector for each in prepared for collector in each.collectors]
        self._n = len(self._requests) // len(prepared)
        self._held = BYTES_A_POSITION * sum(named_positions(each) for each in prepared)
        self._prompt_tokens = sum(len(each.prompt_tokens) for each in prepared)
        self._head = {**head, "created": int(time.time())}
        self._options = options
        call.prepared(head["model"])
        call.service.recorder.asked(self._requests, self._collectors)

    async def run(self) -> Reply | None:
        """A whole answer, or None once a stream has been sent. Raises only before the first byte went out."""
        with self._admitted() as generation:
            if self._options.stream:
                await self._stream(generation)
                return None
            async with bounded_call(self._call), generation:
                generation.listen(lambda: True, _pass)
                async for _ in generation.steps():
                    pass  # the collectors keep what comes
        named = sum(len(each.logprobs) + len(each.prompt_logprobs or ()) for each in self._collectors)
        return Reply(await self._call.service.off_loop(named * BYTES_A_POSITION, self._whole))

    async def tell(self, listener: Listener, steps_of: Callable[[Collector, TextDelta], list[Step]]) -> None:
        """Nothing is sent: `listener` is told what each output means. Raises whatever goes wrong."""
        with self._admitted() as generation:
            async with bounded_call(self._call), generation:
                async for pieces in generation.steps():
                    for piece in pieces:
                        delta = piece.delta
                        if delta.tokens or delta.text or delta.finish_reason:
                            collector = self._collectors[piece.index]
                            await listener(collector, steps_of(collector, delta))

    @contextmanager
    def _admitted(self) -> Iterator[Generation]:
        """The generation, while there is room and quota for it."""
        call, service = self._call, self._call.service
        with service.limits.held(self._held), service.limits.admitted(len(self._requests)):
            call.headers += call.meter.prompt(self._prompt_tokens)
            sequences = list(zip(self._requests, self._collectors))
            try:
                yield Generation(self._backend.engine, service.metrics, sequences, call.journey, self._n)
            finally:
                call.meter.output(sum([collector.num_output_tokens for collector in self._collectors]))

    def _whole(self) -> bytes:
        whole = {
            **self._head,
            "object": self._dialect.whole_object,
            "choices": [self._written(index, collector) for index, collector in enumerate(self._collectors)],
            "usage": usage_of(self._collectors, self._n),
            **self._dialect.top_level(self._collectors),
        }
        return msgspec.json.encode(whole)

    def _written(self, index: int, collector: Collector) -> msgspec.Raw:
        """A choice at a time: millions of objects that all go at once would hold up all other requests for seconds."""
        return msgspec.Raw(msgspec.json.encode(self._choice(index, collector)))

    def _choice(self, index: int, collector: Collector) -> dict[str, Any]:
        rendered = self._dialect.choice(index, collector)
        if self._options.token_ids:
            rendered["token_ids"] = collector.tokens
            rendered["prompt_token_ids"] = collector.prompt_tokens
        return rendered

    async def _stream(self, generation: Generation) -> None:
        """The answer begins with the first step, so that what fails before it still has its status."""
        events = EventStream(self._call)
        chunks = Chunks(self._dialect, self._head, self._options, self._collectors, self._n)

        def show(piece: Piece) -> None:
            out = chunks.render(piece.index, piece.delta)
            if out:
                events.write_now(out)

        try:
            async with bounded_call(self._call), generation, events.kept_alive():
                generation.listen(events.open, show)
                async for pieces in generation.steps():
                    out = b"".join([chunks.render(piece.index, piece.delta) for piece in pieces])
                    if out:
                        await events.write(out)
        except Exception as exc:
            await events.fail(events.fault(exc))
            return
        await events.finish(chunks.usage_event() if self._options.usage_at_end else b"")


def _pass(piece: Piece) -> None:
    del piece


def bounded_call(call: Call) -> AbstractAsyncContextManager[None]:
    """What a handler awaits inside ends when the client leaves or when the request's time is over."""
    limit = call.time_limit_s
    return bounded(call.receive, limit, max(0.0, call.arrival + limit - time.monotonic()))
