"""``/v1/files``: upload, list, look, read, delete."""

import asyncio
from typing import Any

from octavo.base.errors import UserError, bad_value
from octavo.serve.calls import Call, Reply, json_reply
from octavo.serve.errors import WrongType
from octavo.serve.files.form import FileForm
from octavo.serve.query import Query, listing
from octavo.serve.store.database import within_reach
from octavo.serve.store.files import FileRow, Upload

PURPOSES = ("batch", "batch_output", "assistants", "fine-tune", "vision", "user_data", "evals")
UPLOAD_PURPOSES = tuple(purpose for purpose in PURPOSES if purpose != "batch_output")
RAW_KINDS = (b"application/octet-stream", b"application/jsonl", b"application/x-ndjson", b"text/plain")
MAX_FILENAME = 255
FORM_BYTES = 64 << 10  # of a form beside its file
READ_BYTES = 1 << 20
MAX_LISTED = 10_000


async def upload(call: Call) -> Reply:
    """Takes a file: a multipart form, or the bytes as they are with purpose and filename in the URL."""
    headers = dict(call.scope["headers"])
    kind = headers.get(b"content-type", b"")
    media = kind.partition(b";")[0].strip().lower()
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
        raise WrongType("A compressed body is not accepted.", code="unsupported_media_type")
    with within_reach():
        if media == b"multipart/form-data":
            return json_reply(shown(await _form(call, FileForm(kind))))
        if media in RAW_KINDS:
            return json_reply(shown(await _raw(call)))
    raise WrongType("Send multipart/form-data or application/octet-stream.", code="unsupported_media_type")


async def index(call: Call) -> Reply:
    """The caller's files, newest first unless order=asc."""
    query = Query(call.scope)
    limit = query.whole("limit", 1, MAX_LISTED) or MAX_LISTED
    rows = await call.service.stores.files.page(
        call.owner,
        purpose=query.choice("purpose", PURPOSES),
        after=query.text("after"),
        limit=limit + 1,
        ascending=query.choice("order", ("asc", "desc")) == "asc",
    )
    return json_reply(listing([shown(row) for row in rows[:limit]], more=len(rows) > limit))


async def show(call: Call) -> Reply:
    """What is known of a file."""
    return json_reply(shown(await _row(call)))


async def content(call: Call) -> None:
    """A file's bytes, as a download."""
    row = await _row(call)
    path = call.service.stores.files.path(row)
    with within_reach():
        file = await asyncio.to_thread(path.open, "rb")
    with file:
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-disposition", b"attachment"),
            (b"content-length", str(row.bytes).encode()),
        ]
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        left = row.bytes
        while left > 0:
            data = await asyncio.to_thread(file.read, min(READ_BYTES, left))
            if not data:
                raise OSError("a stored file is shorter than it was")
            left -= len(data)
            await call.send({"type": "http.response.body", "body": data, "more_body": left > 0})
        if not row.bytes:
            await call.send({"type": "http.response.body", "body": b""})


async def delete(call: Call) -> Reply:
    """Forgets a file."""
    id = str(call.scope["path_params"]["file_id"])
    with within_reach():
        await call.service.stores.files.delete(call.owner, id)
    return json_reply({"id": id, "object": "file", "deleted": True})


def shown(row: FileRow) -> dict[str, Any]:
    """OpenAI's file object."""
    return {
        "id": row.id,
        "object": "file",
        "bytes": row.bytes,
        "created_at": row.created,
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
    }


def label(given: str | None) -> str:
    """A file's name as it may be shown: the last part of a path, printable and short."""
    name = (given or "").replace("\\", "/").rsplit("/", 1)[-1]
    name = "".join(char if char.isprintable() else "_" for char in name).strip(". ")
    return name[:MAX_FILENAME] or "file"


async def _form(call: Call, form: FileForm) -> FileRow:
    store = call.service.stores.files
    target = await store.create(call.owner, "", "")
    try:
        async for part in call.service.limits.body_parts(call.receive, store.max_file + FORM_BYTES):
            await call.service.off_loop(len(part), form.feed, part)
            await target.write(form.take())
        form.close()
        for name in form.fields:
            if name.startswith("expires_after"):  # the file would be kept for longer than it should
                raise UserError(f"{name} is not supported by this server.", param=name, code="unsupported_parameter")
        target.filename = label(form.filename)
        target.purpose = _purpose(form.fields.get("purpose"))
        return await target.finish()
    except BaseException:
        target.abort()
        raise


async def _raw(call: Call) -> FileRow:
    query, store = Query(call.scope), call.service.stores.files
    purpose, name = _purpose(query.text("purpose") or "batch"), label(query.text("filename"))
    target: Upload = await store.create(call.owner, name, purpose)
    try:
        async for part in call.service.limits.body_parts(call.receive, store.max_file):
            await target.write(part)
        return await target.finish()
    except BaseException:
        target.abort()
        raise


def _purpose(given: str | None) -> str:
    if given not in UPLOAD_PURPOSES:
        raise bad_value("purpose", f"must be one of {', '.join(UPLOAD_PURPOSES)}")
    return given


async def _row(call: Call) -> FileRow:
    return await call.service.stores.files.get(call.owner, str(call.scope["path_params"]["file_id"]))
