"""Checks of tool definitions, so that a bad one is a 400 that names it and never reaches a template or a grammar."""

import re
from typing import Any

import msgspec

from octavo.base.errors import UserError
from octavo.text.parse.base import Choice

MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 32
MAX_DESCRIPTION = 16 << 10
MAX_PATTERN = 4096
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_SUBSCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
# Quantified groups inside quantified groups explode in a backtracking matcher, and huge counts in an automaton.
# JSON schema speaks ECMA's dialect; what Python spells otherwise is replaced before the check.
_ECMA = re.compile(r"\\[pP]\{[^}]*\}|\\u\{[^}]*\}|\\c[A-Za-z]|\\k<\w+>|(?P<group>\(\?<(?![=!])[^>]*>)")
_BIG_COUNT = re.compile(r"\{\s*\d{5,}|,\s*\d{5,}\s*\}")


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
        raise UserError("tool_choice needs tools.", param="tool_choice", code="invalid_value")
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
            raise _bad("tool_choice.allowed_tools", "needs a mode, auto or required, and tools")
        where = "tool_choice.allowed_tools.tools"
        names = tuple(dict.fromkeys(_named(each, tools, f"{where}[{i}]") for i, each in enumerate(listed)))
        kept = [tool for tool in tools if tool["function"]["name"] in names]
        return kept, Choice(mode, names, parallel is not False, _strict(kept))
    raise _bad("tool_choice", "must be none, auto, required, a function, or allowed_tools")


def _names(tools: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(tool["function"]["name"] for tool in tools)


def _strict(tools: list[dict[str, Any]]) -> bool:
    return any(tool["function"].get("strict") is True for tool in tools)


def _named(value: Any, tools: list[dict[str, Any]], where: str) -> str:
    """The name of a function among the tools."""
    function = value.get("function", value) if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _bad(f"{where}.function.name", "must be a string")
    if name not in _names(tools):
        raise _bad(f"{where}.function.name", "is not the name of one of the tools")
    return name


def check_tools(tools: list[dict[str, Any]]) -> None:
    """UserError at ``tools[i]...`` for a tool that no model could be given."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if tool.get("type", "function") != "function":
            raise _bad(f"{path}.type", "must be function")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise _bad(f"{path}.function", "must be an object")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _bad(f"{path}.function.name", "must be 1 to 64 letters, digits, '_', '-' or '.'")
        if name in names:
            raise _bad(f"{path}.function.name", "is the name of an earlier tool")
        names.add(name)
        description = function.get("description")
        if description is not None and (not isinstance(description, str) or len(description) > MAX_DESCRIPTION):
            raise _bad(f"{path}.function.description", f"must be a string of at most {MAX_DESCRIPTION} characters")
        parameters = function.get("parameters")
        if parameters is not None:
            if not isinstance(parameters, dict):
                raise _bad(f"{path}.function.parameters", "must be an object")
            if len(msgspec.json.encode(parameters)) > MAX_SCHEMA_BYTES:
                raise _bad(f"{path}.function.parameters", f"may have at most {MAX_SCHEMA_BYTES} bytes")
            check_schema(parameters, f"{path}.function.parameters")


def check_schema(schema: Any, path: str, depth: int = 0) -> None:
    """UserError at the place where `schema` is no JSON schema."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _bad(path, "must be an object or a boolean")
    if depth > MAX_SCHEMA_DEPTH:
        raise _bad(path, f"nests deeper than {MAX_SCHEMA_DEPTH}")
    _check_keywords(schema, path)
    for key in _SUBSCHEMAS:
        if key in schema:
            check_schema(schema[key], f"{path}.{key}", depth + 1)
    for key in _SCHEMA_LISTS:
        if key in schema:
            if not isinstance(schema[key], list) or not schema[key]:
                raise _bad(f"{path}.{key}", "must be a list of schemas")
            for index, item in enumerate(schema[key]):
                check_schema(item, f"{path}.{key}[{index}]", depth + 1)
    for key in _SCHEMA_MAPS:
        if key in schema:
            if not isinstance(schema[key], dict):
                raise _bad(f"{path}.{key}", "must be an object")
            for name, item in schema[key].items():
                check_schema(item, f"{path}.{key}.{name[:64]}", depth + 1)


def _check_keywords(schema: dict[str, Any], path: str) -> None:
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind] if kind is not None else []
    for name in kinds:
        if not isinstance(name, str) or name not in _TYPES:
            raise _bad(f"{path}.type", "is not a JSON type")
    required = schema.get("required")
    if required is not None and not (isinstance(required, list) and all(isinstance(r, str) for r in required)):
        raise _bad(f"{path}.required", "must be a list of strings")
    if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
        raise _bad(f"{path}.enum", "must be a list of values")
    patterns = [schema["pattern"]] if "pattern" in schema else []
    if isinstance(schema.get("patternProperties"), dict):
        patterns += list(schema["patternProperties"])
    for pattern in patterns:
        _check_pattern(pattern, f"{path}.pattern")


def _check_pattern(pattern: Any, path: str) -> None:
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        raise _bad(path, f"must be a string of at most {MAX_PATTERN} characters")
    if _BIG_COUNT.search(pattern) or pattern.count("(") > 256:
        raise _bad(path, "is too complex")
    try:
        re.compile(_ECMA.sub(lambda found: "(?:" if found["group"] else "a", pattern))
    except (re.error, RecursionError, OverflowError):
        raise _bad(path, "is not a regular expression") from None


def _bad(path: str, what: str) -> UserError:
    return UserError(f"{path} {what}.", param=path, code="invalid_value")
