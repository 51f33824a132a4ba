"""Body of ``/v1/responses``."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from octavo.base.params import MAX_LOGPROBS
from octavo.serve.openai.schema import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, Effort, Int, Name, Text

MetaText = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[Annotated[str, Meta(max_length=64)], MetaText], Meta(max_length=16)]


class InputPart(Struct, kw_only=True):
    """One part of a message's or a reasoning item's content."""

    type: Name
    text: Text | None = None
    refusal: Text | None = None


Parts = Annotated[list[InputPart], Meta(max_length=MAX_PARTS)]


class InputItem(Struct, kw_only=True):
    """One item of any type; which fields it needs is checked where it is read."""

    type: Name = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Text | Parts | None = None
    id: Name | None = None
    call_id: Name | None = None
    name: Name | None = None
    arguments: Text | None = None
    output: Text | Parts | None = None
    summary: Parts | None = None
    status: Name | None = None


class ResponsesTool(Struct, kw_only=True):
    """A function that the model may call."""

    type: Name
    name: Name | None = None
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Reasoning(Struct, kw_only=True):
    """How hard to think. Summaries are not made: the thoughts themselves are given."""

    effort: Effort | None = None
    summary: Name | None = None
    generate_summary: Name | None = None


class TextForm(Struct, kw_only=True):
    """The form of the answer's text."""

    format: dict[str, Any] | None = None
    verbosity: Name | None = None


class ResponsesRequest(Struct, kw_only=True):
    """``/v1/responses``. What it has beyond these goes to chat under its own name: seed, top_k, stop and the like."""

    input: Text | Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: Name | None = None
    instructions: Text | None = None
    previous_response_id: Name | None = None
    tools: Annotated[list[ResponsesTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Name | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextForm | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    include: Annotated[list[Name], Meta(max_length=16)] | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    truncation: Literal["disabled", "auto"] | None = None
    conversation: Any = None
    prompt: Any = None


# Without effect on the answer here.
SILENT = frozenset(
    {
        "user",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "max_tool_calls",
        "stream_options",
        "moderation",
        "context_management",
    }
)
