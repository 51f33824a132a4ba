"""Bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from octavo.base import params
from octavo.serve.openai.schema import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, Effort, Int, Name, StopString, Text


class Block(Struct, kw_only=True):
    """One content block of any type; which fields it needs is checked where it is read."""

    type: Name
    text: Text | None = None
    id: Name | None = None
    name: Name | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Name | None = None
    content: "Text | Annotated[list[Block], Meta(max_length=MAX_PARTS)] | None" = None
    is_error: bool | None = None
    thinking: Text | None = None
    signature: Text | None = None
    source: dict[str, Any] | None = None
    title: Text | None = None
    context: Text | None = None


Blocks = Annotated[list[Block], Meta(max_length=MAX_PARTS)]


class InputMessage(Struct, kw_only=True):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: Text | Blocks


class MessagesTool(Struct, kw_only=True):
    """A function that the model may call."""

    name: Name
    description: Text | None = None
    input_schema: dict[str, Any] | None = None
    type: Name | None = None
    strict: bool | None = None


class ToolChoice(Struct, kw_only=True):
    """auto, any (some tool), tool (the named one), none."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, kw_only=True):
    """Whether the model thinks, and how many tokens it may take for it."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, le=params.MAX_TOKENS)] | None = None


class OutputConfig(Struct, kw_only=True):
    """How hard to think, and the form of the answer."""

    effort: Effort | None = None
    format: dict[str, Any] | None = None


class Conversation(Struct, kw_only=True):
    """What messages and count_tokens share."""

    model: Name | None = None
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: Text | Blocks | None = None
    tools: Annotated[list[MessagesTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None


class MessagesRequest(Conversation, kw_only=True):
    """``/v1/messages``. What it has beyond these goes to chat under its own name: seed, min_p and the like."""

    max_tokens: Int
    stop_sequences: Annotated[list[StopString], Meta(max_length=params.MAX_STOPS)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    stream: bool | None = None


# Of no meaning on a server of one's own.
SILENT = frozenset({"metadata", "service_tier", "cache_control", "betas", "inference_geo"})
