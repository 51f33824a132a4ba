"""Checks of tool definitions, so that a bad one is a 400 that names it and never reaches a template or a grammar."""

import re
from typing import Any

import msgspec

from octavo.base.errors import bad_value
from octavo.grammar.ending import check_schema_ends
from octavo.grammar.schema import check_references, check_schema
from octavo.text.parse.base import Choice

MAX_SCHEMA_BYTES = 64 << 10
MAX_DESCRIPTION = 16 << 10
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def choice_of(
    tools: list[dict[str, Any]] | None, tool_choice: Any, parallel: bool | None
) -> tuple[list[dict[str, Any]], Choice | None]:
    """The tools that may be called, and how; None where no call is to be looked for. The tools have been checked.

    `tool_choice` is ``none``, ``auto``, ``required``, a function by name, or ``allowed_tools``. Raises UserError.
    """
    if tool_choice is None or tool_choice in ("none", "auto"):
        names = _names(tools or [])
        if not tools or tool_choice == "none":
            return [], None
        return tools, Choice("auto", names, parallel is not False, _strict(tools))
    if not tools:
        raise bad_value("tool_choice", "needs tools")
    if tool_choice == "required":
        return tools, Choice("required", _names(tools), parallel is not False, _strict(tools))
    if isinstance(tool_choice, dict) and tool_choice.get("type") == "function":
        name = _named(tool_choice, tools, "tool_choice")
        return tools, Choice("required", (name,), False, True)
    if isinstance(tool_choice, dict) and tool_choice.get("type") == "allowed_tools":
        inner = tool_choice.get("allowed_tools", tool_choice)
        mode = inner.get("mode") if isinstance(inner, dict) else None
        listed = inner.get("tools") if isinstance(inner, dict) else None
        if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
            raise bad_value("tool_choice.allowed_tools", "needs a mode, auto or required, and tools")
        where = "tool_choice.allowed_tools.tools"
        names = tuple(dict.fromkeys(_named(each, tools, f"{where}[{i}]") for i, each in enumerate(listed)))
        kept = [tool for tool in tools if tool["function"]["name"] in names]
        return kept, Choice(mode, names, parallel is not False, _strict(kept))
    raise bad_value("tool_choice", "must be none, auto, required, a function, or allowed_tools")


def _names(tools: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(tool["function"]["name"] for tool in tools)


def _strict(tools: list[dict[str, Any]]) -> bool:
    return any(tool["function"].get("strict") is True for tool in tools)


def _named(value: Any, tools: list[dict[str, Any]], where: str) -> str:
    """The name of a function among the tools."""
    function = value.get("function", value) if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise bad_value(f"{where}.function.name", "must be a string")
    if name not in _names(tools):
        raise bad_value(f"{where}.function.name", "is not the name of one of the tools")
    return name


def check_tools(tools: list[dict[str, Any]]) -> None:
    """UserError at ``tools[i]...`` for a tool that no model could be given."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if tool.get("type", "function") != "function":
            raise bad_value(f"{path}.type", "must be function")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise bad_value(f"{path}.function", "must be an object")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise bad_value(f"{path}.function.name", "must be 1 to 64 letters, digits, '_', '-' or '.'")
        if name in names:
            raise bad_value(f"{path}.function.name", "is the name of an earlier tool")
        names.add(name)
        description = function.get("description")
        if description is not None and (not isinstance(description, str) or len(description) > MAX_DESCRIPTION):
            raise bad_value(f"{path}.function.description", f"must be a string of at most {MAX_DESCRIPTION} characters")
        parameters = function.get("parameters")
        if parameters is not None:
            if not isinstance(parameters, dict):
                raise bad_value(f"{path}.function.parameters", "must be an object")
            if len(msgspec.json.encode(parameters)) > MAX_SCHEMA_BYTES:
                raise bad_value(f"{path}.function.parameters", f"may have at most {MAX_SCHEMA_BYTES} bytes")
            check_schema(parameters, f"{path}.function.parameters")
            check_references(parameters, parameters, f"{path}.function.parameters")
            check_schema_ends(parameters, f"{path}.function.parameters")
