"""The operator's limits: each has a flag, and each is a 400 with its field's name."""

from typing import Any

import msgspec
import pytest

from octavo.base.config import LimitsConfig
from octavo.base.errors import UserError
from octavo.serve.openai.bounds import check_bounds
from octavo.serve.openai.schema import ChatRequest, CompletionRequest, TokenizeRequest

MESSAGE = {"role": "user", "content": "hi"}
CHAT: dict[str, Any] = {"messages": [MESSAGE]}
TEXT: dict[str, Any] = {"prompt": "hi"}
SMALL = LimitsConfig(
    max_n=2, max_prompts=2, max_messages=2, max_tools=2, max_stops=2, max_stop_chars=3, max_logit_bias=2, max_logprobs=2
)


def refusal(kind: type[msgspec.Struct], fields: dict[str, Any], limits: LimitsConfig) -> str | None:
    try:
        check_bounds(msgspec.convert(fields, kind), limits)
    except UserError as error:
        return error.param if error.code == "invalid_value" else "?"
    return None


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        (ChatRequest, {**CHAT, "n": 3}, "n"),
        (ChatRequest, {**CHAT, "n": 0}, "n"),
        (ChatRequest, {**CHAT, "n": 2}, None),
        (CompletionRequest, {**TEXT, "n": 3}, "n"),
        (ChatRequest, {"messages": [MESSAGE] * 3}, "messages"),
        (TokenizeRequest, {"messages": [MESSAGE] * 3}, "messages"),
        (ChatRequest, {"messages": [MESSAGE] * 2}, None),
        (ChatRequest, {**CHAT, "tools": [{}] * 3}, "tools"),
        (ChatRequest, {**CHAT, "stop": ["a"] * 3}, "stop"),
        (ChatRequest, {**CHAT, "stop": ["a", "long"]}, "stop[1]"),
        (CompletionRequest, {**TEXT, "stop": "long"}, "stop[0]"),
        (CompletionRequest, {**TEXT, "stop": ["abc", "b"]}, None),
        (CompletionRequest, {**TEXT, "logit_bias": {"1": 1, "2": 1, "3": 1}}, "logit_bias"),
        (CompletionRequest, {**TEXT, "logprobs": 3}, "logprobs"),
        (CompletionRequest, {**TEXT, "logprobs": 2}, None),
        (CompletionRequest, {**TEXT, "prompt_logprobs": 3}, "prompt_logprobs"),
        (ChatRequest, {**CHAT, "logprobs": True, "top_logprobs": 3}, "top_logprobs"),
        (CompletionRequest, {"prompt": ["a", "b", "c"]}, "prompt"),
        (CompletionRequest, {"prompt": [[1], [2], [3]]}, "prompt"),
        (CompletionRequest, {"prompt": [1, 2, 3]}, None),
    ],
)
def test_each_limit(kind: type[msgspec.Struct], fields: dict[str, Any], param: str | None) -> None:
    assert refusal(kind, fields, SMALL) == param


def test_the_defaults_are_those_that_are_written_down() -> None:
    limits = LimitsConfig()
    assert refusal(ChatRequest, {**CHAT, "n": 4}, limits) is None
    assert refusal(ChatRequest, {**CHAT, "n": 5}, limits) == "n"
    assert refusal(ChatRequest, {**CHAT, "stop": ["x" * 1024] * 16}, limits) is None
    assert refusal(ChatRequest, {**CHAT, "stop": ["x"] * 17}, limits) == "stop"
    assert refusal(ChatRequest, {"messages": [MESSAGE] * 2049}, limits) == "messages"
    assert refusal(ChatRequest, {**CHAT, "tools": [{}] * 129}, limits) == "tools"
    assert refusal(CompletionRequest, {"prompt": ["a"] * 257}, limits) == "prompt"
