"""``POST /v1/responses``: whole, streamed, or in the background."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import Struct

from octavo.base.errors import OctavoError, Unavailable, UserError, bad_value
from octavo.serve import inner
from octavo.serve.calls import Backend, Call, Reply, json_reply
from octavo.serve.decode import Schema
from octavo.serve.errors import failure
from octavo.serve.openai import chat
from octavo.serve.openai.answer import bounded_call
from octavo.serve.openai.extras import own_words, passed_on
from octavo.serve.responses.builder import ResponseBuilder
from octavo.serve.responses.job import ResponseJob, check_room, send_events
from octavo.serve.responses.schema import SILENT, InputItem, ResponsesRequest
from octavo.serve.responses.translate import chat_body, check, input_items
from octavo.serve.responses.truncation import fitting
from octavo.serve.sse import EventStream
from octavo.serve.store.responses import StoredResponse
from octavo.serve.turns import Listener, Step
from octavo.text.collect import Collector

log = logging.getLogger("octavo.serve")

START_S = 0.5  # how long a background response is watched for faults of its request before it is called queued

_SCHEMA = Schema(ResponsesRequest, SILENT)
_ELSEWHERE = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "logprobs": "top_logprobs",
}
_NAMES = {
    r"max_(completion_)?tokens": "max_output_tokens",
    r"messages.*": "input",
    r"(tools\[\d+\])\.function": r"\1",
    r"tool_choice\.function": "tool_choice",
    r"response_format(\.json_schema)?": "text.format",
    r"reasoning_effort": "reasoning.effort",
    r"verbosity": "text.verbosity",
}


class _Output(Struct):
    output: list[InputItem] = []


async def create(call: Call) -> Reply | None:
    """Makes a response."""
    body, unknown = await call.read(_SCHEMA)
    check(body)
    model = call.service.check_model(body.model)
    store = body.store is not False and await call.service.stores.responses.usable()
    if body.background and not store:
        raise bad_value("background", "needs a stored response")
    earlier, extra = await _earlier(call, body), passed_on(unknown, _ELSEWHERE)
    size = call.body_bytes + sum(row.size for row in earlier)
    request = await call.service.off_loop(size, _encode, call.service.backend, body, earlier, extra)
    builder = ResponseBuilder(_head(call, body, model, store))
    with own_words(_NAMES, unknown):
        if body.background:
            return await _background(call, body, request, builder)
        if body.stream:
            await _stream(call, body, request, builder, store=store)
            return None
        await inner.tell(call, chat.create, request, _listener(builder))
    builder.finish()
    if store:
        await call.service.stores.responses.put(_row(call.owner, body, builder))
    return json_reply(builder.response)


async def _stream(call: Call, body: ResponsesRequest, request: bytes, builder: ResponseBuilder, *, store: bool) -> None:
    """The answer begins with the first event, so that what fails before has its status. This dialect has no [DONE]."""
    events = EventStream(call)
    try:
        async with events.kept_alive():
            await inner.tell(call, chat.create, request, _listener(builder, events))
    except Exception as exc:
        await events.finish(builder.fail(events.fault(exc).error), end=b"")
        return
    finished = builder.finish()
    if store:  # before the client hears of the end, so that it can go on from here
        await call.service.stores.responses.put(_row(call.owner, body, builder))
    await events.finish(finished, end=b"")


def _listener(builder: ResponseBuilder, events: EventStream | None = None) -> Listener:
    async def hear(collector: Collector, steps: Sequence[Step]) -> None:
        out = builder.take(collector, steps)
        if events is not None and out:
            await events.write(out)

    return hear


async def _earlier(call: Call, body: ResponsesRequest) -> list[StoredResponse]:
    """The responses that this one goes on from, oldest first."""
    if body.previous_response_id is None:
        return []
    with own_words({"response_id": "previous_response_id"}, {}):
        chain = await call.service.stores.responses.chain(call.owner, body.previous_response_id)
    if chain[-1].previous is not None:
        raise UserError(f"The conversation has more than {len(chain)} turns.", param="previous_response_id")
    if chain[0].status not in ("completed", "incomplete"):
        raise UserError(f"The previous response is {chain[0].status}.", param="previous_response_id")
    return chain[::-1]


def _encode(
    backend: Backend, body: ResponsesRequest, earlier: list[StoredResponse], extra: dict[str, msgspec.Raw]
) -> bytes:
    """The chat request. It may have read much more than its own body: what was said earlier."""
    items: list[InputItem] = []
    for row in earlier:
        items += msgspec.json.decode(row.input, type=list[InputItem])
        items += msgspec.json.decode(row.response, type=_Output).output
    items += input_items(body)
    if body.truncation == "auto":
        items = fitting(backend, body, items)
    return msgspec.json.encode({**extra, **chat_body(body, items)})


def _head(call: Call, body: ResponsesRequest, model: str, store: bool) -> dict[str, Any]:
    """The response object before anything has come."""
    defaults = call.service.backend.text.defaults.params()
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "queued" if body.background else "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": body.reasoning or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": store,
        "temperature": defaults.temperature if body.temperature is None else body.temperature,
        "text": {"format": (body.text and body.text.format) or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": [_tool_shown(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": defaults.top_p if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": None,
        "metadata": body.metadata or {},
    }


def _tool_shown(tool: Struct) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(tool)
    return {"strict": None, "parameters": None, **shown}


def _row(owner: str, body: ResponsesRequest, builder: ResponseBuilder, events: bytes = b"") -> StoredResponse:
    given = input_items(body)
    for item in given:
        item.id = item.id or f"{'msg' if item.type == 'message' else 'item'}_{uuid.uuid4().hex}"
    response = builder.response
    return StoredResponse(
        id=response["id"],
        owner=owner,
        status=response["status"],
        previous=body.previous_response_id,
        input=msgspec.json.encode(given),
        response=msgspec.json.encode(response),
        events=events,
    )


async def _background(call: Call, body: ResponsesRequest, request: bytes, builder: ResponseBuilder) -> Reply | None:
    """Starts the job, which counts against the key until it ends; what is wrong with the request shows at once and is
    still a plain error."""
    service = call.service
    check_room(service)
    job = ResponseJob(call.owner, builder, keeps_events=bool(body.stream))
    meter = service.meter_of(call.owner, call.tenant)
    detached = replace(call, receive=inner.never, headers=[], arrival=time.monotonic(), meter=meter)
    await service.stores.responses.put(_row(call.owner, body, builder))
    service.jobs.start(job.name, _run(detached, body, request, job), job, waits=True)
    async with bounded_call(call):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(job.begun.wait(), START_S)
    if isinstance(job.error, UserError):
        await service.stores.responses.delete(call.owner, builder.response["id"])
        raise job.error
    if body.stream:
        await send_events(call, job.follow(0))
        return None
    return json_reply(builder.response)


async def _run(call: Call, body: ResponsesRequest, request: bytes, job: ResponseJob) -> None:
    """The job: makes the response and writes it down, however it ends."""
    builder, store = job.builder, call.service.stores.responses

    async def hear(collector: Collector, steps: Sequence[Step]) -> None:
        job.add(builder.take(collector, steps))

    try:
        await inner.tell(call, chat.create, request, hear)
        job.add(builder.finish())
    except asyncio.CancelledError:
        if job.cancelled:
            job.add(builder.stop("cancelled"))
        else:
            job.add(builder.fail(failure(Unavailable("The server is shutting down.")).error))
    except Exception as exc:
        if not isinstance(exc, OctavoError | msgspec.DecodeError):  # a bug: whoever asks for it must not wait for ever
            log.error("the response %s failed", builder.response["id"], exc_info=exc)
        if not job.begun.is_set():
            job.error = exc
        job.add(builder.fail(failure(exc).error))
    finally:
        call.meter.end()
        await asyncio.shield(store.put(_row(job.owner, body, builder, job.events)))
        job.end()
