"""From a checked body to sequences for the engine. What is here may run in a thread."""

import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from octavo.base.errors import UserError
from octavo.base.wire import EngineRequest
from octavo.serve.calls import Backend, Call
from octavo.serve.decode import Schema
from octavo.serve.openai.fields import ignored_header, sort_unknown
from octavo.serve.openai.schema import Sampled
from octavo.text.collect import Collector

MAX_CHOICES = 1024
IGNORED_HEADER = b"x-octavo-ignored"

Prompt = str | list[int]
Sequences = Sequence[tuple[EngineRequest, Collector]]
B = TypeVar("B", bound=Sampled)

_TOKEN_ID = re.compile(r"\d{1,10}")
# Words that the renderer sets itself; a caller may not set them behind its back.
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


async def begin(call: Call, schema: Schema[B]) -> tuple[Backend, str, B]:
    """Backend, model name and body of a generating request; fields without meaning are named in the answer."""
    backend = call.service.backend
    body, unknown = await call.read(schema)
    note_unknown(call, unknown)
    model = call.service.check_model(body.model)
    if body.priority and call.service.config.engine.scheduler.scheduling_policy != "priority":
        raise UserError("priority needs a server with --scheduling-policy priority.", param="priority")
    return backend, model, body


def note_unknown(call: Call, unknown: dict[str, msgspec.Raw]) -> None:
    """Refuses what would change the answer and names the rest in a header."""
    ignored = sort_unknown(unknown)
    if ignored:
        call.headers.append((IGNORED_HEADER, ignored_header(ignored).encode()))


def check_choices(prompts: int, n: int) -> None:
    """Bounds the work of one request before any of it exists."""
    if prompts * n > MAX_CHOICES:
        raise UserError(f"{prompts} prompts times n = {n} is more than {MAX_CHOICES} choices.", param="n")
