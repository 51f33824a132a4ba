"""Whether anything fits a constraint that ever ends: seen from its text alone, in one look at each part.

A part ends if one of its ways leads only to parts that end. All parts begin as endless and are looked at until nothing
changes; what stays endless is. Where a look is not sure, it says that there is an end: an engine has the last word.
"""

from collections.abc import Iterator
from typing import Any

from octavo.base.errors import UserError
from octavo.grammar.base import Refused
from octavo.grammar.rules import Rules, read_rules
from octavo.grammar.schema import pointed

MAX_ROUNDS = 24  # each is a look at all; what takes more has references for a maze, and is left to the engines
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")


def check_schema_ends(schema: Any, path: str) -> None:
    """UserError for a schema that no value of finite length fits; it is well formed otherwise."""
    if not isinstance(schema, dict):
        return
    nodes = list(_nodes(schema))
    if not any("$ref" in node for node in nodes):
        return
    parts = {id(node) for node in nodes}
    ending: set[int] = set()
    for number in range(MAX_ROUNDS):
        before = len(ending)
        for node in nodes if number % 2 == 0 else reversed(nodes):
            if id(node) not in ending and _ends(node, schema, ending, parts):
                ending.add(id(node))
        if id(schema) in ending:
            return
        if len(ending) == before:
            raise UserError(
                f"{path} fits no value of finite length: a $ref leads to false, or back to where it stands with no "
                "other way.",
                param=path,
                code="invalid_value",
            )


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema object in the document, inner ones first."""
    if not isinstance(schema, dict):
        return
    inner = [schema[key] for key in _SINGLE if key in schema]
    inner += [item for key in _LISTS for item in schema.get(key) or ()]
    inner += [item for key in _MAPS for item in (schema.get(key) or {}).values()]
    for each in inner:
        yield from _nodes(each)
    yield schema


def _ends(node: dict[str, Any], root: Any, ending: set[int], parts: set[int]) -> bool:
    """Whether some value fits `node`, if those of `parts` that are in `ending` have one."""

    def can(value: Any) -> bool:
        return value is not False and (id(value) in ending or id(value) not in parts)

    if "$ref" in node and not can(pointed(root, node["$ref"])):
        return False
    if not all(map(can, node.get("allOf") or ())):
        return False
    if not all(any(map(can, node[key])) for key in ("anyOf", "oneOf") if node.get(key)):
        return False
    kinds = node.get("type")
    kinds = {kinds} if isinstance(kinds, str) else set(kinds or ())
    if "enum" in node or "const" in node or not kinds or kinds - {"object", "array"}:
        return True
    return ("object" in kinds and _object_ends(node, can)) or ("array" in kinds and _array_ends(node, can))


def _object_ends(node: dict[str, Any], can: Any) -> bool:
    properties = node.get("properties") or {}
    # A name that a pattern might match is not looked into.
    other = True if node.get("patternProperties") else node.get("additionalProperties", True)
    return all(can(properties.get(name, other)) for name in node.get("required") or ())


def _array_ends(node: dict[str, Any], can: Any) -> bool:
    first = node.get("prefixItems") or []
    count = min(int(node.get("minItems", 0)), len(first) + 1)
    items = [first[place] if place < len(first) else node.get("items", True) for place in range(count)]
    found = "contains" not in node or node.get("minContains", 1) == 0 or can(node["contains"])
    return found and all(map(can, items))


def check_grammar_ends(source: str) -> None:
    """Raises Refused for a Lark grammar with a rule that can be reached and never comes to an end."""
    rules = read_rules(source)
    if rules is None or "start" not in rules:
        return
    ending: set[str] = set()
    for number in range(MAX_ROUNDS):
        before = len(ending)
        for name in rules if number % 2 == 0 else reversed(rules):
            if name not in ending and any(all(_known(part, rules, ending) for part in way) for way in rules[name]):
                ending.add(name)
        if len(ending) == before:
            break
    else:
        return
    endless = [name for name in _reached(rules) if name not in ending]
    if endless:  # the last is the nearest to the fault
        raise Refused(f"holds the rule {endless[-1][:64]}, which never comes to an end")


def _known(part: str, rules: Rules, ending: set[str]) -> bool:
    return part in ending or part not in rules


def _reached(rules: Rules) -> list[str]:
    """Names that `start` leads to, itself first."""
    found, queue = {"start": None}, ["start"]
    while queue:
        for way in rules[queue.pop()]:
            for part in way:
                if part in rules and part not in found:
                    found[part] = None
                    queue.append(part)
    return list(found)
