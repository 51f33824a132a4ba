"""Short instances of a schema and of the schemas inside it: where the search for the shortest end looks first.

These are guesses: a matcher has the last word on each. So what is hard to satisfy (patterns, conditions) may be
guessed wrong or not at all.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from octavo.grammar.schema import pointed

MAX_HINTS = 192
MAX_ROUNDS = 12
MAX_TEXT = 2048
_FORMATS = {
    "date": "2000-01-01",
    "time": "00:00:00Z",
    "date-time": "2000-01-01T00:00:00Z",
    "duration": "P1D",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "email": "a@a.aa",
    "hostname": "a",
    "ipv4": "0.0.0.0",
    "ipv6": "::",
    "uri": "a:b",
}
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties")

_WORDS = {
    "string": {"format", "pattern", "minLength"},
    "object": {"properties", "required", "patternProperties", "minProperties"},
    "array": {"items", "prefixItems", "minItems"},
}

Known = dict[int, str | None]
"""By the id of a schema object."""

Example = Callable[[str], str | None]
"""A short text that matches a regular expression, if one is found."""

Examples = dict[str, str | None]
MAX_PATTERNS = 32


def no_example(pattern: str) -> str | None:
    """Nothing is found."""
    del pattern
    return None


def hints(schema: Any, example: Example = no_example) -> tuple[bytes, ...]:
    """Texts that may stand for a value, an object's member, or either behind a comma; short ones first.

    The first is the guess for the whole schema, if there is one.
    """
    nodes = list(_nodes(schema))
    known: Known = {}
    patterns = {node["pattern"]: None for node in nodes if isinstance(node.get("pattern"), str)}
    examples = {pattern: example(pattern) for pattern in list(patterns)[:MAX_PATTERNS]}
    for _ in range(MAX_ROUNDS):
        changed = False
        for node in nodes:
            text = _shortest(node, schema, known, examples)
            if text is not None and len(text) <= MAX_TEXT and text != known.get(id(node)):
                known[id(node)] = text
                changed = True
        if not changed:
            break
    whole = known.get(id(schema)) if not isinstance(schema, bool) else None
    values = {text for text in known.values() if text is not None}
    members = {
        f"{_json(name)}:{value}" for node in nodes for name in _required(node) if (value := _member(node, name, known))
    }
    # A member whose value is hard to guess: its name alone helps.
    members |= {f"{_json(name)}:" for node in nodes for name in _required(node) if not _member(node, name, known)}
    members |= {
        f"{_json(name)}:{value}"
        for node in nodes
        for pattern, inner in (node.get("patternProperties") or {}).items()
        if (name := example(pattern)) is not None and (value := _lookup(inner, known)) is not None
    }
    # Where no type is said, what each type that the keywords speak of would take once it has begun.
    values |= {
        text
        for node in (_merged(node) if "allOf" in node else node for node in nodes)
        for kind in _spoken_of(node)
        if (text := _of_type(kind, node, known, examples)) is not None and len(text) <= MAX_TEXT
    }
    texts = values | members
    both = sorted(texts | {"," + text for text in texts}, key=lambda text: (len(text), text))
    return tuple(text.encode() for text in ([whole] if whole is not None else []) + both[:MAX_HINTS])


def longest(schema: Any) -> int:
    """Bytes of the longest string among the constants."""
    values = [value for node in _nodes(schema) for value in (*(node.get("enum") or ()), node.get("const"))]
    return max((len(_json(value)) for value in values if isinstance(value, str | dict | list)), default=0)


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema object in the document, inner ones first."""
    if not isinstance(schema, dict):
        return
    for key in _SINGLE:
        yield from _nodes(schema.get(key))
    for key in _LISTS:
        for item in schema.get(key) or ():
            yield from _nodes(item)
    for key in _MAPS:
        for item in (schema.get(key) or {}).values():
            yield from _nodes(item)
    yield schema


def _required(node: dict[str, Any]) -> list[str]:
    names = node.get("required")
    return names if isinstance(names, list) else []


def _member(node: dict[str, Any], name: str, known: Known) -> str | None:
    inner = (node.get("properties") or {}).get(name, node.get("additionalProperties", True))
    return _lookup(inner, known)


def _lookup(schema: Any, known: Known) -> str | None:
    if schema is False:
        return None
    return known.get(id(schema)) if isinstance(schema, dict) else "0"


def _shortest(node: dict[str, Any], root: Any, known: Known, examples: Examples) -> str | None:
    """The best guess for one schema, given those for the others."""
    if "const" in node:
        return _json(node["const"])
    if isinstance(node.get("enum"), list):
        return min(map(_json, node["enum"]), key=len)
    found: list[str | None] = []
    if "$ref" in node:
        target = pointed(root, node["$ref"])
        found.append(_lookup(target, known) if isinstance(target, dict | bool) else None)
    elif "anyOf" in node or "oneOf" in node:
        found += [_lookup(item, known) for item in node.get("anyOf") or node.get("oneOf") or ()]
    elif "allOf" in node:
        found.append(_shortest(_merged(node), root, known, examples))
    else:
        kind = node.get("type")
        kinds = [kind] if isinstance(kind, str) else kind or _implied(node)
        found += [_of_type(name, node, known, examples) for name in kinds]
    return min((text for text in found if text is not None), key=len, default=None)


def _implied(node: dict[str, Any]) -> list[str]:
    """Without a type any value goes that no keyword speaks of."""
    if "minimum" in node or "maximum" in node or "multipleOf" in node:
        return ["null", "string"]
    return ["number"]


def _spoken_of(node: dict[str, Any]) -> list[str]:
    """The types whose keywords a schema has that says no type."""
    return [] if "type" in node else [kind for kind, words in _WORDS.items() if words & node.keys()]


def _merged(node: dict[str, Any]) -> dict[str, Any]:
    """``allOf`` laid over each other: properties and required joined, the rest by the last word."""
    whole: dict[str, Any] = {key: value for key, value in node.items() if key != "allOf"}
    for part in node["allOf"]:
        if not isinstance(part, dict):
            continue
        for key, value in part.items():
            if key == "properties":
                whole[key] = {**whole.get(key, {}), **value}
            elif key == "required":
                whole[key] = [*_required(whole), *_required(part)]
            else:
                whole[key] = value
    return whole


def _of_type(kind: str, node: dict[str, Any], known: Known, examples: Examples) -> str | None:
    match kind:
        case "null":
            return "null"
        case "boolean":
            return "true"
        case "string":
            return _string(node, examples)
        case "integer" | "number":
            return _number(node, whole=kind == "integer")
        case "array":
            return _array(node, known)
        case "object":
            return _object(node, known)
    return None


def _string(node: dict[str, Any], examples: Examples) -> str | None:
    if "pattern" in node:
        found = examples.get(node["pattern"])
        return None if found is None else _json(found)
    text = _FORMATS.get(node.get("format", ""), "") if "format" in node else ""
    return _json(text + "a" * (int(node.get("minLength", 0)) - len(text))) if "format" not in node or text else None


def _number(node: dict[str, Any], *, whole: bool) -> str | None:
    low = max(node.get("minimum", -math.inf), node.get("exclusiveMinimum", -math.inf))
    high = min(node.get("maximum", math.inf), node.get("exclusiveMaximum", math.inf))
    step = node.get("multipleOf") or 1
    for value in (0, math.ceil(low) if low > -math.inf else 0, math.floor(high) if high < math.inf else 0):
        for near in (value, math.ceil(value / step) * step, value + 1, value - 1):
            inside = node.get("minimum", near) <= near <= node.get("maximum", near)
            strict = node.get("exclusiveMinimum", near - 1) < near < node.get("exclusiveMaximum", near + 1)
            if inside and strict and math.isclose(near / step, round(near / step)):
                return _json(near)
    if whole or not low < high:
        return None
    return _json((low + high) / 2)


def _array(node: dict[str, Any], known: Known) -> str | None:
    count = int(node.get("minItems", 0))
    if count > MAX_TEXT:
        return None
    prefix = node.get("prefixItems") or []
    rest = node.get("items", True)
    items = [_lookup(prefix[index] if index < len(prefix) else rest, known) for index in range(count)]
    return None if None in items else "[" + ",".join(item for item in items if item is not None) + "]"


def _object(node: dict[str, Any], known: Known) -> str | None:
    declared = list(node.get("properties") or {})
    names = sorted(
        dict.fromkeys(_required(node)), key=lambda name: declared.index(name) if name in declared else len(declared)
    )
    extra = int(node.get("minProperties", 0)) - len(names)
    if extra > 0:
        names += [name for name in declared if name not in names][:extra]
    members = [(name, _member(node, name, known)) for name in names]
    if any(value is None for _, value in members):
        return None
    return "{" + ",".join(f"{_json(name)}:{value}" for name, value in members) + "}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
