"""``/v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's way to say what chat says."""

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.base.errors import UserError
from octavo.serve import inner
from octavo.serve.anthropic.blocks import PING, MessageBuilder
from octavo.serve.anthropic.errors import envelope
from octavo.serve.anthropic.schema import SILENT, Conversation, MessagesRequest
from octavo.serve.anthropic.translate import BUDGET, chat_body, conversation
from octavo.serve.calls import Call, Reply, json_reply
from octavo.serve.decode import Schema, plain
from octavo.serve.openai import chat, tokenize
from octavo.serve.openai.extras import own_words, passed_on
from octavo.serve.openai.prepare import IGNORED_HEADER
from octavo.serve.sse import EventStream, named_event
from octavo.serve.turns import Listener, Step
from octavo.text.collect import Collector

_MESSAGES = Schema(MessagesRequest, SILENT)
_COUNT = Schema(Conversation, SILENT.union(MessagesRequest.__struct_fields__))  # the request as it will be sent
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
    form = body.output_config.format if body.output_config is not None else None
    names = _NAMES if form is not None else {**_NAMES, _FORMAT: "output_format"}
    builder = MessageBuilder(f"msg_{uuid.uuid4().hex}", model)
    events = EventStream(call, PING) if body.stream else None

    async def hear(collector: Collector, steps: Sequence[Step]) -> None:
        out = builder.take(collector, steps)
        if events is not None and out:
            await events.write(out)

    if events is None:
        await _tell(call, request, extra, hear, names, unknown)
        return json_reply(builder.message())
    try:
        async with events.kept_alive():
            await _tell(call, request, extra, hear, names, unknown)
    except Exception as exc:
        await events.finish(named_event("error", envelope(events.fault(exc), call.request_id)), end=b"")
    else:
        await events.finish(builder.finish(), end=b"")
    return None


async def _tell(
    call: Call,
    request: dict[str, Any],
    extra: dict[str, msgspec.Raw],
    listener: Listener,
    names: dict[str, str],
    unknown: dict[str, msgspec.Raw],
) -> None:
    with own_words(names, unknown):
        try:
            await inner.tell(call, chat.create, await _encoded(call, request, extra), listener)
        except UserError as exc:
            if exc.param != BUDGET:
                raise
            # A budget is an aim of the caller's and no promise: this model, or this request's form, cannot be held to
            # it.
            del request[BUDGET]
            call.headers[:] = [header for header in call.headers if header[0] != IGNORED_HEADER]  # said again
            await inner.tell(call, chat.create, await _encoded(call, request, extra), listener)


async def count_tokens(call: Call) -> Reply:
    """How many tokens the conversation's prompt has."""
    call.headers.append((b"request-id", call.request_id.encode()))
    body, unknown = await call.read(_COUNT)
    extra = passed_on(unknown, _ELSEWHERE)
    with own_words(_NAMES, unknown):
        answer = await inner.ask(call, tokenize.tokenize, await _encoded(call, conversation(body), extra))
    return json_reply({"input_tokens": answer["count"]})


async def _encoded(call: Call, body: dict[str, Any], extra: dict[str, msgspec.Raw]) -> bytes:
    return await call.service.off_loop(call.body_bytes, _encode, body, extra)


def _encode(body: dict[str, Any], extra: dict[str, msgspec.Raw]) -> bytes:
    given = plain(extra[_ARGUMENTS], _ARGUMENTS) if _ARGUMENTS in extra else None
    if given is not None:  # beside what the template is told about thinking; chat says what is wrong with it
        told = {**body.get(_ARGUMENTS, {}), **given} if isinstance(given, dict) else given
        body = {**body, _ARGUMENTS: told}
    return msgspec.json.encode({**extra, **body})
