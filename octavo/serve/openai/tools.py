"""Checks of tool definitions, so that a bad one is a 400 that names it and never reaches a template or a grammar."""

import re
from typing import Any

import msgspec

from octavo.base.errors import UserError
from octavo.grammar.schema import check_schema

MAX_SCHEMA_BYTES = 64 << 10
MAX_DESCRIPTION = 16 << 10
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


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


def _bad(path: str, what: str) -> UserError:
    return UserError(f"{path} {what}.", param=path, code="invalid_value")
