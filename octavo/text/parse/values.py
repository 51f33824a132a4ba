"""Text values from XML and the like to JSON, by the schema of the parameter they are for."""

import json
from typing import Any

import msgspec

from octavo.text.parse.base import ToolSchemas
from octavo.text.parse.source import Sink

_MAX_HOPS = 16
_WORDS = {"True": "true", "False": "false", "None": "null"}


def types_of(schema: Any, root: dict[str, Any], hops: int = _MAX_HOPS) -> frozenset[str]:
    """The JSON types that a schema allows as far as it says; empty: it does not say."""
    if not isinstance(schema, dict) or hops <= 0:
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return frozenset(name for name in kind if isinstance(name, str))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") if isinstance(schema.get("enum"), list) else [schema.get("const")]
        return frozenset(_type_name(value) for value in values or [])
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return types_of(_resolve(reference, root), root, hops - 1)
    found: set[str] = set()
    for key in ("anyOf", "oneOf", "allOf"):
        for inner in (schema[key] if isinstance(schema.get(key), list) else ())[:_MAX_HOPS]:
            found |= types_of(inner, root, hops // 2)
    return frozenset(found)


def is_text(schema: Any, root: dict[str, Any]) -> bool:
    """Whether a value can only be a string."""
    return types_of(schema, root) == {"string"}


def convert(text: str, schema: Any, root: dict[str, Any]) -> str:
    """The JSON text of a value written as `text`.

    What parses as JSON of a type that the schema allows is taken as that; else it is a string. A schema that says
    nothing allows everything.
    """
    kinds = types_of(schema, root)
    if kinds == {"string"}:
        return quote(text)
    stripped = text.strip()
    stripped = _WORDS.get(stripped, stripped)
    try:
        value = msgspec.json.decode(stripped.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return quote(text)
    own = _type_name(value)
    fits = not kinds or own in kinds or (own == "integer" and "number" in kinds) or "string" not in kinds
    return stripped if fits else quote(text)


def quote(text: str) -> str:
    """A JSON string; what is not ASCII stays as it is."""
    return json.dumps(text, ensure_ascii=False)


class Quoter:
    """Text that comes in pieces, quoted as one JSON string. `trim`: one newline at either end is not part of it."""

    def __init__(self, sink: Sink, trim: bool = False) -> None:
        self._sink = sink
        self._trim = trim
        self._fresh = trim
        self._newline = False
        sink('"')

    def add(self, text: str) -> None:
        """More of the string."""
        if self._fresh and text:
            self._fresh = False
            text = text[1:] if text[0] == "\n" else text
        if self._trim and text:
            text = ("\n" if self._newline else "") + text
            self._newline = text[-1] == "\n"
            text = text[:-1] if self._newline else text
        if text:
            self._sink(quote(text)[1:-1])

    def end(self) -> None:
        """The closing quote."""
        self._sink('"')


def parameter_schema(tools: ToolSchemas, tool: str, name: str) -> tuple[Any, dict[str, Any]]:
    """A parameter's schema and the root that its references mean."""
    return tools.property(tool, name), tools.root(tool)


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = ((str, "string"), (int, "integer"), (float, "number"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def _resolve(reference: str, root: dict[str, Any]) -> Any:
    """A local reference, ``#/$defs/Name``; None for any other."""
    if not reference.startswith("#/"):
        return None
    node: Any = root
    for part in reference[2:].split("/")[:_MAX_HOPS]:
        node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
    return node
