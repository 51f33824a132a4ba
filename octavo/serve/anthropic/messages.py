"""``/v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's way to say what chat says."""

import uuid
from typing import Any

import msgspec

from octavo.base.errors import UserError
from octavo.serve import inner
from octavo.serve.anthropic.blocks import PING, MessageBuilder
from octavo.serve.anthropic.errors import stream_error
from octavo.serve.anthropic.schema import SILENT, Conversation, MessagesRequest
from octavo.serve.anthropic.translate import BUDGET, chat_body, conversation
from octavo.serve.calls import Call, Reply, json_reply
from octavo.serve.decode import Schema, plain
from octavo.serve.errors import ErrorDetail
from octavo.serve.openai import chat, tokenize
from octavo.serve.openai.extras import own_words, passed_on
from octavo.serve.openai.prepare import IGNORED_HEADER
from octavo.serve.sse import EventStream, named_event
from octavo.serve.turns import TurnReader

_MESSAGES = Schema(MessagesRequest, SILENT)
_COUNT = Schema(Conversation, SILENT)
_ELSEWHERE = {"max_completion_tokens": "max_tokens", "stop": "stop_sequences", "prompt": "messages", "logprobs": ""}
_FORMAT = r"response_format(\.json_schema)?"
_NAMES = {
    r"max_completion_tokens": "max_tokens",
    r"stop\b": "stop_sequences",
    r"messages.*": "messages",
    r"(tools\[\d+\])\.function\.parameters": r"\1.input_schema",
    r"(tools\[\d+\])\.function": r"\1",
    r"tool_choice\.function": "tool_choice",
    _FORMAT: "output_config.format",
    r"reasoning_effort": "output_config.effort",
}
_ARGUMENTS = "chat_template_kwargs"


async def create(call: Call) -> Reply | None:
    """Answers a conversation in Anthropic's form."""
    call.headers.append((b"request-id", call.request_id.encode()))
    body, unknown = await call.read(_MESSAGES)
    model = call.service.check_model(body.model)
    request, extra = chat_body(body), passed_on(unknown, _ELSEWHERE)
    sink = _Message(call, MessageBuilder(f"msg_{uuid.uuid4().hex}", model), stream=bool(body.stream))
    form = body.output_config.format if body.output_config is not None else None
    names = _NAMES if form is not None else {**_NAMES, _FORMAT: "output_format"}
    with own_words(names, unknown):
        try:
            await inner.stream(call, chat.create, await _encoded(call, request, extra), sink)
        except UserError as exc:
            if exc.param != BUDGET:
                raise
            # A budget is an aim of the caller's and no promise: this model, or this request's form, cannot be held to
            # it.
            del request[BUDGET]
            call.headers[:] = [header for header in call.headers if header[0] != IGNORED_HEADER]  # said again
            await inner.stream(call, chat.create, await _encoded(call, request, extra), sink)
    return await sink.end()


async def count_tokens(call: Call) -> Reply:
    """How many tokens the conversation's prompt has."""
    call.headers.append((b"request-id", call.request_id.encode()))
    body, _ = await call.read(_COUNT)
    answer = await inner.ask(call, tokenize.tokenize, conversation(body))
    return json_reply({"input_tokens": answer["count"]})


async def _encoded(call: Call, body: dict[str, Any], extra: dict[str, msgspec.Raw]) -> bytes:
    return await call.service.off_loop(call.body_bytes, _encode, body, extra)


def _encode(body: dict[str, Any], extra: dict[str, msgspec.Raw]) -> bytes:
    options = {"include_usage": True, "continuous_usage_stats": True}
    given = plain(extra[_ARGUMENTS], _ARGUMENTS) if _ARGUMENTS in extra else None
    if given is not None:  # beside what the template is told about thinking; chat says what is wrong with it
        told = {**body.get(_ARGUMENTS, {}), **given} if isinstance(given, dict) else given
        body = {**body, _ARGUMENTS: told}
    return msgspec.json.encode({**extra, **body, "stream": True, "stream_options": options})


class _Message:
    """Writes the message, or keeps it for the end."""

    def __init__(self, call: Call, builder: MessageBuilder, *, stream: bool) -> None:
        self._call = call
        self._builder = builder
        self._reader = TurnReader()
        self._events = EventStream(call.scope, call.send, call.limits.send_timeout) if stream else None
        self._failed = False

    async def data(self, payload: bytes) -> None:
        steps = list(self._reader.feed(payload))
        out = b"" if self._builder.begun else self._builder.begin(self._reader.usage)
        out += b"".join([self._builder.feed(step) for step in steps])
        await self._write(out)

    async def idle(self) -> None:
        await self._write(PING)

    async def error(self, error: ErrorDetail) -> None:
        if self._events is None:
            raise inner.raised(error)
        self._failed = True
        await self._write(b"")
        await self._events.finish(named_event("error", stream_error(error)), end=b"")

    async def end(self) -> Reply | None:
        """The whole answer, or None once the stream is over."""
        if self._events is None:
            return json_reply(self._builder.message(self._reader.usage))
        if not self._failed:
            await self._write(b"")
            await self._events.finish(self._builder.finish(self._reader.usage), end=b"")
        return None

    async def _write(self, out: bytes) -> None:
        if self._events is None:
            return
        if not self._events.started:
            await self._events.start(self._call.headers)
        if out:
            await self._events.write(out)
