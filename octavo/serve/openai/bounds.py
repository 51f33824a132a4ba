"""The operator's limits on one request, looked at as soon as its body is read: before a prompt is tokenized."""

from collections.abc import Sequence
from typing import Any

from octavo.base.config import LimitsConfig
from octavo.base.errors import bad_value
from octavo.serve.openai.schema import ChatRequest, CompletionRequest, Sampled, TokenizeRequest


def check_bounds(body: Any, limits: LimitsConfig) -> None:
    """UserError with the field's name for the first that is over its limit. `body`: any request of these endpoints."""
    if isinstance(body, Sampled):
        _check_sampled(body, limits)
    if isinstance(body, CompletionRequest):
        _check_number("logprobs", body.logprobs, 0, limits.max_logprobs)
        if isinstance(body.prompt, list) and body.prompt and type(body.prompt[0]) is not int:
            _check_length("prompt", body.prompt, limits.max_prompts)
    if isinstance(body, ChatRequest | TokenizeRequest):
        _check_length("messages", body.messages, limits.max_messages)
        _check_length("tools", body.tools, limits.max_tools)
    if isinstance(body, ChatRequest):
        _check_number("top_logprobs", body.top_logprobs, 0, limits.max_logprobs)


def _check_sampled(body: Sampled, limits: LimitsConfig) -> None:
    _check_number("n", body.n, 1, limits.max_n)
    _check_number("prompt_logprobs", body.prompt_logprobs, 0, limits.max_logprobs)
    if body.logit_bias is not None and len(body.logit_bias) > limits.max_logit_bias:
        raise bad_value("logit_bias", f"may hold at most {limits.max_logit_bias} tokens, got {len(body.logit_bias)}")
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    _check_length("stop", stops, limits.max_stops)
    for index, stop in enumerate(stops):
        if len(stop) > limits.max_stop_chars:
            raise bad_value(f"stop[{index}]", f"may have at most {limits.max_stop_chars} characters")


def _check_number(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise bad_value(name, f"must be between {low} and {high}, got {str(value)[:24]}")


def _check_length(name: str, values: Sequence[Any] | None, most: int) -> None:
    if values is not None and len(values) > most:
        raise bad_value(name, f"may hold at most {most} entries, got {len(values)}")
