"""``truncation: auto``: a conversation that does not fit loses its oldest turns."""

from collections.abc import Callable, Sequence

import msgspec

from octavo.base.errors import UserError
from octavo.serve.calls import Backend
from octavo.serve.openai.prepare import chat_tokens
from octavo.serve.openai.schema import ChatRequest
from octavo.serve.responses.schema import InputItem, ResponsesRequest
from octavo.serve.responses.translate import chat_body

TOO_LONG = "context_length_exceeded"


def fitting(backend: Backend, body: ResponsesRequest, items: list[InputItem]) -> list[InputItem]:
    """The newest turns that leave room for the answer. A turn goes whole, so that no call loses its result; what the
    operator says stays, and so does the last turn, which may yet be too long. Raises UserError."""
    room = backend.text.limits.max_model_len - (body.max_output_tokens or 1)
    spoken = [index for index, item in enumerate(items) if item.role == "user"]
    cuts = [0, *[index for index in spoken[1:] if index > 0]]
    cut = _first(cuts, lambda index: _length(backend, body, _from(items, index)) <= room)
    return _from(items, cut)


def _from(items: Sequence[InputItem], cut: int) -> list[InputItem]:
    kept = [item for item in items[:cut] if item.role in ("system", "developer")]
    return [*kept, *items[cut:]]


def _first(cuts: Sequence[int], fits: Callable[[int], bool]) -> int:
    """The first of `cuts` that fits, all behind it fitting too; the last if none does."""
    low, high = 0, len(cuts) - 1
    if fits(cuts[0]):
        return cuts[0]
    while low < high:
        middle = (low + high) // 2
        if fits(cuts[middle]):
            high = middle
        else:
            low = middle + 1
    return cuts[high]


def _length(backend: Backend, body: ResponsesRequest, items: list[InputItem]) -> int:
    request = msgspec.convert(chat_body(body, items), ChatRequest)
    try:
        return len(chat_tokens(backend, request, request.messages))
    except UserError as error:
        if error.code != TOO_LONG:
            raise
        return 1 << 62
