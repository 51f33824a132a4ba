"""``/v1/batches``: begin, look, list, cancel."""

import re
import time
import uuid
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from octavo.base.errors import UserError, bad_value
from octavo.serve.batches.runner import find_run, start
from octavo.serve.batches.work import TARGETS
from octavo.serve.calls import Call, Reply, json_reply
from octavo.serve.decode import Schema
from octavo.serve.openai.extras import own_words
from octavo.serve.openai.prepare import note_unknown
from octavo.serve.openai.schema import Name
from octavo.serve.query import Query, listing
from octavo.serve.responses.schema import Metadata
from octavo.serve.store.batches import Batch

_WINDOW = re.compile(r"([1-9]\d{0,3})([hd])")
MAX_WINDOW_S = 30 * 86_400


class BatchRequest(Struct, kw_only=True):
    """``POST /v1/batches``. The window is how long lines may begin: 24h, 7d."""

    input_file_id: Name
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
    completion_window: Annotated[str, Meta(max_length=8)] = "24h"
    metadata: Metadata | None = None


_SCHEMA = Schema(BatchRequest)
assert set(TARGETS) == set(BatchRequest.__annotations__["endpoint"].__args__)


async def create(call: Call) -> Reply:
    """Begins a batch."""
    body, unknown = await call.read(_SCHEMA)
    note_unknown(call, unknown)
    stores = call.service.stores
    _ = call.service.backend
    with own_words({"file_id": "input_file_id"}, {}):
        file = await stores.files.get(call.owner, body.input_file_id)
    if file.purpose != "batch":
        raise UserError("The file's purpose must be batch.", param="input_file_id", code="invalid_value")
    now = int(time.time())
    batch = Batch(
        id=f"batch_{uuid.uuid4().hex}",
        endpoint=body.endpoint,
        input_file_id=file.id,
        completion_window=body.completion_window,
        created_at=now,
        expires_at=now + _seconds(body.completion_window),
        metadata=body.metadata,
    )
    await stores.batches.add(call.owner, batch)
    start(call.service, call.owner, call.tenant, batch)
    return json_reply(batch)


async def index(call: Call) -> Reply:
    """The caller's batches, newest first."""
    query = Query(call.scope)
    limit = query.whole("limit", 1, 100) or 20
    found = await call.service.stores.batches.page(call.owner, after=query.text("after"), limit=limit + 1)
    rows = [_current(call, batch) for batch in found[:limit]]
    return json_reply(listing(rows, more=len(found) > limit))


async def show(call: Call) -> Reply:
    """One batch."""
    return json_reply(_current(call, await _batch(call)))


async def cancel(call: Call) -> Reply:
    """Ends a batch; what has been answered comes in its files. One that has ended is left as it is."""
    batch = await _batch(call)
    run = find_run(call.service, call.owner, batch.id)
    if run is not None:
        run.cancel()
        await call.service.stores.batches.save(run.batch)
    elif batch.open:  # the server is about to end and its job has gone already
        batch.turn("cancelling")
        await call.service.stores.batches.save(batch)
    return json_reply(_current(call, batch))


def _current(call: Call, batch: Batch) -> dict[str, Any]:
    """The batch as it is at this moment."""
    run = find_run(call.service, call.owner, batch.id)
    if run is not None:
        run.refresh()
        batch = run.batch
    shown: dict[str, Any] = msgspec.to_builtins(batch)
    return shown


async def _batch(call: Call) -> Batch:
    return await call.service.stores.batches.get(call.owner, str(call.scope["path_params"]["batch_id"]))


def _seconds(window: str) -> int:
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * (3600 if found[2] == "h" else 86_400) if found else 0
    if not 0 < seconds <= MAX_WINDOW_S:
        raise bad_value("completion_window", "must be a time like 24h or 7d, at most 30d")
    return seconds
