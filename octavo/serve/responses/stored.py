"""Stored responses: read, streamed again, their input listed, deleted, cancelled."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from octavo.base.errors import UserError
from octavo.serve.calls import Call, Reply, json_reply
from octavo.serve.query import Query
from octavo.serve.responses.job import ResponseJob, find_job, job_name, not_streamed, send_events
from octavo.serve.store.responses import StoredResponse

LOST = {"code": "server_error", "message": "The server was restarted while it made this response."}


async def show(call: Call) -> Reply | None:
    """A response; with stream=true the events of one made in the background, after number `starting_after`."""
    query = Query(call.scope)
    stream, after = query.flag("stream"), query.whole("starting_after", 0, 1 << 31)
    if after is not None and not stream:
        raise UserError("starting_after needs stream=true.", param="starting_after")
    job, id = _job(call), _id(call)
    if stream:
        start = 0 if after is None else after + 1
        row = await call.service.stores.responses.get(call.owner, id)
        await send_events(call, job.follow(start) if job else _replay(row, start))
        return None
    if job is not None:
        return json_reply(job.builder.response)
    return json_reply(_response(await call.service.stores.responses.get(call.owner, id)))


async def input_items(call: Call) -> Reply:
    """The items that a response was made from, earlier responses not counted."""
    query = Query(call.scope)
    row = await call.service.stores.responses.get(call.owner, _id(call))
    items: list[dict[str, Any]] = [_shown(item) for item in msgspec.json.decode(row.input)]
    if query.choice("order", ("asc", "desc")) != "asc":
        items.reverse()
    return json_reply(query.page(items, query.text("after"), query.whole("limit", 1, 100) or 20))


async def delete(call: Call) -> Reply:
    """Forgets a response, ending it if it still runs."""
    id = _id(call)
    await _end(call, _job(call))
    await call.service.stores.responses.delete(call.owner, id)
    return json_reply({"id": id, "object": "response", "deleted": True})


async def cancel(call: Call) -> Reply:
    """Ends a response that runs in the background; one that has ended stays as it is."""
    id, job = _id(call), _job(call)
    await _end(call, job)
    response = _response(await call.service.stores.responses.get(call.owner, id))
    if not response["background"]:
        raise UserError("Only a response in the background can be cancelled.", param="response_id")
    return json_reply(response)


def _id(call: Call) -> str:
    return str(call.scope["path_params"]["response_id"])


def _job(call: Call) -> ResponseJob | None:
    return find_job(call.service, call.owner, _id(call))


async def _end(call: Call, job: ResponseJob | None) -> None:
    if job is None:
        return
    job.cancelled = True
    task = call.service.jobs.cancel(job_name(job.builder.response["id"]))
    if task is not None:
        await _settled(task)


async def _settled(task: Any) -> None:
    """Waits for a cancelled job to write itself down."""
    try:
        await task
    except BaseException:
        if not task.done():
            raise  # it was us who were cancelled


def _response(row: StoredResponse) -> dict[str, Any]:
    response: dict[str, Any] = msgspec.json.decode(row.response)
    if row.status == "lost":
        response |= {"status": "failed", "error": LOST}
    return response


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in item.items() if value is not None}
    if shown.get("type") == "message" and isinstance(shown.get("content"), str):
        kind = "output_text" if shown["role"] == "assistant" else "input_text"
        shown["content"] = [{"type": kind, "text": shown["content"]}]
    return shown


async def _replay(row: StoredResponse, start: int) -> AsyncIterator[bytes]:
    """The stored stream from event number `start` on."""
    if not row.events:
        raise not_streamed()
    yield b"".join(event + b"\n\n" for event in row.events.split(b"\n\n")[start:-1])
