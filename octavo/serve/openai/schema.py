"""Request bodies. Every list, string and number has a maximum; null means the default; nothing is coerced.

Ranges of the sampling numbers live in SamplingParams.checked, once for every way in.
"""

from typing import Annotated, Any, Literal, Protocol

from msgspec import Meta, Struct

from octavo.base import params

MAX_NAME = 256
# Where the operator sets the limit (LimitsConfig), these are the most that can be set.
MAX_MESSAGES = 16_384
MAX_PARTS = 256
MAX_TOOLS = 4096
MAX_TEXT = 1 << 27  # characters; the body limit is the nearer bound, this one holds if an operator lifts it
MAX_TEMPLATE_KWARGS = 32
MAX_TOKEN_LIST = 1 << 24

Name = Annotated[str, Meta(max_length=MAX_NAME)]
# A template of other words gets them by chat_template_kwargs.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Int = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
StopString = Annotated[str, Meta(max_length=params.MAX_STOP_CHARS)]
BadWord = Annotated[str, Meta(max_length=params.MAX_BAD_WORD_CHARS)]


class StreamOptions(Struct, kw_only=True):
    """Usage at the end of a stream, and on each chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(Struct, kw_only=True):
    """OpenAI's wrapping of a schema. `strict` changes nothing: what is asked for is always enforced."""

    name: Name | None = None
    description: Text | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(Struct, kw_only=True):
    """``response_format``."""

    type: Name
    json_schema: JsonSchema | None = None
    schema: Any = None
    format: dict[str, Any] | None = None
    structures: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    triggers: Annotated[list[Name], Meta(max_length=MAX_TOOLS)] | None = None


class Sampled(Struct, kw_only=True):
    """Fields that chat and completions share. Those of `SAMPLING` go to SamplingParams by name."""

    model: Name | None = None
    n: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[Name, float], Meta(max_length=params.MAX_LOGIT_BIAS)] | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=params.MAX_BAD_WORDS)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(max_length=params.MAX_ALLOWED_TOKEN_IDS)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=params.MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=params.MAX_STOP_TOKEN_IDS)] | None = None
    min_tokens: Int | None = None
    max_tokens: Int | None = None
    ignore_eos: bool | None = None
    seed: Int | None = None
    prompt_logprobs: Int | None = None
    logprob_token_ids: Annotated[list[TokenId], Meta(max_length=params.MAX_LOGPROB_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: Int | None = None
    truncation_side: Literal["left", "right"] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    timeout: Annotated[float, Meta(gt=0)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[Name, Any] | None = None
    structural_tag: Text | dict[str, Any] | None = None
    guided_json: Text | dict[str, Any] | bool | None = None
    guided_regex: Text | None = None
    guided_choice: Annotated[list[Text], Meta(max_length=1024)] | None = None
    guided_grammar: Text | None = None
    guided_json_object: bool | None = None
    guided_decoding_backend: Name | None = None
    guided_whitespace_pattern: Text | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


# What goes there as it stands; a bias has its tokens' ids as text here.
SAMPLING = tuple(
    name
    for name in Sampled.__struct_fields__
    if name in params.SamplingParams.__struct_fields__ and name not in ("logit_bias", "structured_outputs")
)


class CompletionRequest(Sampled, kw_only=True):
    """``/v1/completions``. `prompt`: text, token ids, or a list of either."""

    prompt: Text | Annotated[list[Any], Meta(max_length=MAX_TOKEN_LIST)]
    add_special_tokens: bool | None = None
    echo: bool | None = None
    suffix: Text | None = None
    logprobs: Int | None = None


class ContentPart(Struct, kw_only=True):
    """One part of a message. Text only: other types are refused by name."""

    type: Name
    text: Text | None = None
    refusal: Text | None = None


class FunctionCall(Struct, kw_only=True, omit_defaults=True):
    """What the model called; arguments as JSON text or as an object."""

    name: Name
    arguments: Text | dict[str, Any] = ""


class ToolCall(Struct, kw_only=True):
    """One call in an assistant's message."""

    function: FunctionCall
    id: Name | None = None
    type: Literal["function"] = "function"


class Message(Struct, kw_only=True):
    """One turn. Roles are the template's business, so any short name may stand there."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: Text | Annotated[list[ContentPart], Meta(max_length=MAX_PARTS)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Name | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    refusal: Text | None = None
    function_call: Any = None
    audio: Any = None


Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


Tools = Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)]
Documents = Annotated[list[dict[str, Any]], Meta(max_length=MAX_PARTS)]
TemplateArgs = Annotated[dict[Name, Any], Meta(max_length=MAX_TEMPLATE_KWARGS)]


class ChatFields(Protocol):
    """What a conversation needs beside its messages to become a prompt. (Structs cannot inherit from two.)"""

    tools: Tools | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: TemplateArgs | None
    documents: Documents | None
    reasoning_effort: Effort | None


class ChatRequest(Sampled, kw_only=True):
    """``/v1/chat/completions``."""

    messages: Messages
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateArgs | None = None
    documents: Documents | None = None
    reasoning_effort: Effort | None = None
    add_special_tokens: bool | None = None
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=params.MAX_TOKENS)] | None = None


class TokenizeRequest(Struct, kw_only=True):
    """``/tokenize``: a prompt or a conversation."""

    prompt: Text | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateArgs | None = None
    documents: Documents | None = None
    reasoning_effort: Effort | None = None
    model: Name | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """``/detokenize``."""

    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKEN_LIST)]
    model: Name | None = None
