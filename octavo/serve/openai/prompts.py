"""What is to be continued, on its way from the schema: the `prompt` field of completions, and chat's messages for the
template, which checks and shapes their content itself."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from octavo.base.errors import UserError
from octavo.serve.openai.schema import Message
from octavo.text.ids import are_numbers

Prompt = str | list[int]

# What a template would drop, and what says the same.
_INSTEAD = {"function_call": "tool_calls", "audio": "the transcript as content"}


def split_prompts(prompt: str | Sequence[Any]) -> list[Prompt]:
    """The prompts of a body: text, token ids, or a list of either. UserError for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise UserError("prompt must not be empty.", param="prompt")
    if type(prompt[0]) is int:  # a bool is an int to isinstance
        return [_token_ids(prompt, "prompt")]
    if isinstance(prompt[0], str):
        for index, entry in enumerate(prompt):
            if not isinstance(entry, str):
                raise UserError(f"prompt[{index}] must be a string like those before it.", param=f"prompt[{index}]")
        return list(prompt)
    return [_token_ids(entry, f"prompt[{index}]") for index, entry in enumerate(prompt)]


def _token_ids(entry: Any, path: str) -> list[int]:
    if not are_numbers(entry):
        raise UserError(f"{path} must be a string or a list of token ids.", param=path)
    if not entry:
        raise UserError(f"{path} must not be empty.", param=path)
    return cast(list[int], entry)


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """One plain dict a message, without the fields that are null.

    What a model thought goes under both names that templates know it by.
    """
    found: list[dict[str, Any]] = _without_null(msgspec.to_builtins(messages))
    for index, message in enumerate(found):
        for name, instead in _INSTEAD.items():
            if name in message:
                path = f"messages[{index}].{name}"
                raise UserError(
                    f"{path} is not supported by this server; send {instead}.", param=path, code="unsupported_parameter"
                )
        reasoning = message.get("reasoning", message.get("reasoning_content"))
        if reasoning is not None:
            message["reasoning"] = message["reasoning_content"] = reasoning
    return found


def _without_null(value: Any) -> Any:
    """Fields of the schema only: what a tool call's arguments hold stays as it is."""
    if isinstance(value, list):
        return [_without_null(entry) for entry in value]
    if isinstance(value, dict):
        return {
            name: entry if name == "arguments" else _without_null(entry)
            for name, entry in value.items()
            if entry is not None
        }
    return value
