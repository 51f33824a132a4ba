"""Chat messages on their way from the schema to the template, which checks and shapes their content itself."""

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.serve.openai.schema import Message


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """One plain dict a message, without the fields that are null.

    What a model thought goes under both names that templates know it by.
    """
    found: list[dict[str, Any]] = _without_null(msgspec.to_builtins(messages))
    for message in found:
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
