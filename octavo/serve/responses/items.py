"""Input items as chat messages, and an answer's items as the input of the next turn."""

from collections.abc import Sequence
from typing import Any

from octavo.base.errors import UserError, missing
from octavo.serve.responses.schema import InputItem, InputPart

_TEXTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


def messages_of(items: Sequence[InputItem], earlier: int = 0) -> list[dict[str, Any]]:
    """Chat messages. Calls and thoughts of one turn come together in one assistant message.

    `earlier`: how many of the items are of earlier turns, so that an error names the place in this request's input.
    """
    found: list[dict[str, Any]] = []
    for index, item in enumerate(items, -earlier):
        path = f"input[{index}]"
        if item.type == "message":
            _add_message(found, item, path)
        elif item.type == "function_call":
            _add_call(found, item, path)
        elif item.type == "function_call_output":
            _need(item.call_id, f"{path}.call_id")
            if item.output is None:
                raise missing(f"{path}.output")
            output = text_of(item.output, f"{path}.output")
            found.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
        elif item.type == "reasoning":
            thought = text_of(item.content or item.summary or "", f"{path}.content")
            if thought:
                found.append({"role": "assistant", "content": None, "reasoning": thought})
        else:
            raise unsupported(f"{path}.type", f"items of type {item.type[:40]}")
    return found


def text_of(content: str | Sequence[InputPart], path: str) -> str:
    """The text of a content. UserError for what is no text."""
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part_text(part: InputPart, path: str) -> str:
    if part.type in _TEXTS:
        return _need(part.text, f"{path}.text")
    if part.type == "refusal":
        return _need(part.refusal, f"{path}.refusal")
    raise unsupported(f"{path}.type", f"content of type {part.type[:40]}")


def _add_message(found: list[dict[str, Any]], item: InputItem, path: str) -> None:
    role = _need(item.role, f"{path}.role")
    if item.content is None:
        raise missing(f"{path}.content")
    text = text_of(item.content, f"{path}.content")
    if role == "assistant" and _open_turn(found) and found[-1]["content"] is None and "tool_calls" not in found[-1]:
        found[-1]["content"] = text  # what it thought came before
        return
    found.append({"role": role, "content": text})


def _add_call(found: list[dict[str, Any]], item: InputItem, path: str) -> None:
    name = _need(item.name, f"{path}.name")
    call_id = _need(item.call_id, f"{path}.call_id")
    if not _open_turn(found):
        found.append({"role": "assistant", "content": None})
    function = {"name": name, "arguments": item.arguments or "{}"}
    found[-1].setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})


def _open_turn(found: list[dict[str, Any]]) -> bool:
    return bool(found) and found[-1]["role"] == "assistant"


def _need(value: str | None, path: str) -> str:
    if value is None:
        raise missing(path)
    return value


def unsupported(path: str, what: str) -> UserError:
    """For what a text model on one server cannot take."""
    return UserError(f"{path}: {what} cannot be used on this server.", param=path, code="unsupported_value")
