"""JSON schemas: whether one is well formed, the rewrites that change nothing, and pointers into it."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from octavo.base.errors import UserError

MAX_DEPTH = 32
MAX_PATTERN = 4096
MAX_PROPERTIES = 1024  # of one object: each of them may come next, and a step must look at all that may
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_SUBSCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_COUNTS = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# JSON schema speaks ECMA's dialect; what Python spells otherwise is replaced before the check.
_ECMA = re.compile(r"\\[pP]\{[^}]*\}|\\u\{[^}]*\}|\\c[A-Za-z]|\\k<\w+>|(?P<group>\(\?<(?![=!])[^>]*>)")
_BIG_COUNT = re.compile(r"\{\s*\d{5,}|,\s*\d{5,}\s*\}")
# Widths that OpenAPI writes beside a number's type: notes for programmers, which no validator checks.
_NOTES = frozenset({"int32", "int64", "float", "double"})


def check_schema(schema: Any, path: str, depth: int = 0) -> None:
    """UserError at the place where `schema` is no JSON schema."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _bad(path, "must be an object or a boolean")
    if depth > MAX_DEPTH:
        raise _bad(path, f"nests deeper than {MAX_DEPTH}")
    _check_keywords(schema, path)
    for where, inner in _inner(schema, path):
        check_schema(inner, where, depth + 1)


def _inner(schema: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Schemas right inside one, each with its path. UserError where there is none."""
    for key in _SUBSCHEMAS:
        if key in schema:
            yield f"{path}.{key}", schema[key]
    for key in _SCHEMA_LISTS:
        if key in schema:
            if not isinstance(schema[key], list) or not schema[key]:
                raise _bad(f"{path}.{key}", "must be a list of schemas")
            for index, item in enumerate(schema[key]):
                yield f"{path}.{key}[{index}]", item
    for key in _SCHEMA_MAPS:
        if key in schema:
            if not isinstance(schema[key], dict):
                raise _bad(f"{path}.{key}", "must be an object")
            if len(schema[key]) > MAX_PROPERTIES:
                raise _bad(f"{path}.{key}", f"may have at most {MAX_PROPERTIES} entries")
            for name, item in schema[key].items():
                yield f"{path}.{key}.{name[:64]}", item


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
    for key in _COUNTS:
        if key in schema and (isinstance(schema[key], bool) or _whole(schema[key]) is None or schema[key] < 0):
            raise _bad(f"{path}.{key}", "must be a whole number of at least 0")
    for key in _NUMBERS:
        if key in schema and (isinstance(schema[key], bool) or not isinstance(schema[key], int | float)):
            raise _bad(f"{path}.{key}", "must be a number")
    if not isinstance(schema.get("format"), str | None):
        raise _bad(f"{path}.format", "must be a string")
    patterns = [schema["pattern"]] if "pattern" in schema else []
    if isinstance(schema.get("patternProperties"), dict):
        patterns += list(schema["patternProperties"])
    for pattern in patterns:
        check_pattern(pattern, f"{path}.pattern")


def check_references(schema: Any, root: Any, path: str) -> None:
    """UserError for a ``$ref`` that does not lead to a schema in the same document."""
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            check_references(item, root, f"{path}[{index}]")
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                if not value.startswith("#"):
                    raise _bad(f"{path}.$ref", "leads out of the schema; only references into itself are followed")
                if value[1:2] in ("", "/") and not isinstance(pointed(root, value), dict | bool):  # else an anchor
                    raise _bad(f"{path}.$ref", "leads nowhere")
            elif key in ("$dynamicRef", "$recursiveRef"):
                raise _bad(f"{path}.{key}", "is not supported")
            elif key not in ("enum", "const", "default", "examples"):
                check_references(value, root, f"{path}.{key[:64]}")


def check_pattern(pattern: Any, path: str) -> None:
    """UserError for what is no regular expression, or one that is too long or counts too high."""
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        raise _bad(path, f"must be a string of at most {MAX_PATTERN} characters")
    if _BIG_COUNT.search(pattern) or pattern.count("(") > 256:
        raise _bad(path, "is too complex")
    try:
        re.compile(_ECMA.sub(lambda found: "(?:" if found["group"] else "a", pattern))
    except (re.error, RecursionError, OverflowError):
        raise _bad(path, "is not a regular expression") from None


def normal(schema: Any, root: Any, *, closed: bool) -> Any:
    """The same schema in words that grammar engines know. `closed`: objects that do not say otherwise take no more
    properties than they name.

    ``oneOf`` of alternatives that exclude each other is ``anyOf``. Widths of numbers are notes and go.
    """
    if isinstance(schema, list):
        return [normal(item, root, closed=closed) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _SCHEMA_MAPS and isinstance(value, dict):
            found[key] = {name: normal(item, root, closed=closed) for name, item in value.items()}
        elif key in _SUBSCHEMAS or key in _SCHEMA_LISTS:
            found[key] = normal(value, root, closed=closed)
        elif key in _COUNTS:
            found[key] = _whole(value)
        elif not (key == "format" and value in _NOTES):
            found[key] = value
    alternatives = found.get("oneOf")
    if isinstance(alternatives, list) and "anyOf" not in found and _exclusive(alternatives, root):
        found = {("anyOf" if key == "oneOf" else key): value for key, value in found.items()}
    if closed and "properties" in found and "additionalProperties" not in found:
        found["additionalProperties"] = False
    return found


def _whole(value: Any) -> int | None:
    """A whole number, which JSON may write as 2.0."""
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return None


def _exclusive(alternatives: list[Any], root: Any) -> bool:
    """Whether no value can fit two of them, as far as types and constants tell."""
    resolved = [resolve(item, root) for item in alternatives]
    return all(_apart(first, second, root) for index, first in enumerate(resolved) for second in resolved[index + 1 :])


def _apart(first: Any, second: Any, root: Any) -> bool:
    if not isinstance(first, dict) or not isinstance(second, dict):
        return False
    one, two = _types(first), _types(second)
    if one and two and not one & two:
        return True
    one_values, two_values = _values(first), _values(second)
    if one_values is not None and two_values is not None:
        return not one_values & two_values
    if one != {"object"} or two != {"object"}:
        return False
    # Two kinds of object: told apart by a property that both must have, with other constants.
    shared = set(first.get("required") or ()) & set(second.get("required") or ())
    for name in shared:
        left = resolve(first.get("properties", {}).get(name), root)
        right = resolve(second.get("properties", {}).get(name), root)
        if isinstance(left, dict) and isinstance(right, dict):
            one_values, two_values = _values(left), _values(right)
            if one_values is not None and two_values is not None and not one_values & two_values:
                return True
    return False


def _types(schema: dict[str, Any]) -> set[str]:
    """The JSON types a value may have, an integer being a number; empty: any."""
    kind = schema.get("type")
    kinds = {kind} if isinstance(kind, str) else set(kind or ())
    if not kinds and (values := schema.get("enum", [schema["const"]] if "const" in schema else None)):
        kinds = {_type_of(value) for value in values}
    return {"number" if name == "integer" else name for name in kinds}


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "number", float: "number", dict: "object", list: "array"}
    return kinds[type(value)]


def _values(schema: dict[str, Any]) -> set[str] | None:
    """The strings that it allows, if it is a list of strings."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is None or not all(isinstance(value, str) for value in values):
        return None
    return set(values)


def resolve(schema: Any, root: Any) -> Any:
    """What a ``$ref`` into the same document stands for; None if it leads nowhere or in a circle."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        schema = pointed(root, schema["$ref"])
    return None


def pointed(root: Any, reference: Any) -> Any:
    """The value at a ``#/a/b`` pointer (RFC 6901, section 6), None if there is none."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    place = root
    for part in reference[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and key in place:
            place = place[key]
        elif isinstance(place, list) and key.isdigit() and int(key) < len(place):
            place = place[int(key)]
        else:
            return None
    return place


def _bad(path: str, what: str) -> UserError:
    return UserError(f"{path} {what}.", param=path, code="invalid_value")
