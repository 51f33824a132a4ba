"""Grammars of other forms as llguidance's Lark: GBNF, and structural tags (free text with constrained parts in it)."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.grammar.base import Refused
from octavo.grammar.ending import check_schema_ends
from octavo.grammar.schema import normal

MAX_NODES = 2048
_ANY = r"/(.|\n)*/"


def from_any(source: str) -> str:
    """Lark as it is, GBNF and EBNF with ``::=`` rewritten. Raises Refused."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(source))
    except Exception as error:  # the converter raises whatever its parser meets
        reason = " ".join(str(error).split())[:200]
        raise Refused(f"is not a grammar: {reason}") from None


def from_tag(tag: Any, special: Mapping[str, int] | None = None) -> str:
    """A structural tag, the older form (``structures``, ``triggers``) or the newer one (``format``). Raises Refused.

    `special`: ids of special tokens by name; where a name stands in a text, the token is meant.

    Formats: const_string, json_schema, regex, grammar (Lark), any_text, tag, sequence, or, optional, star, plus,
    triggered_tags, tags_with_separator.
    """
    if not isinstance(tag, dict):
        raise Refused("must be an object")
    if "structures" in tag:
        tags = [
            {
                "begin": each.get("begin"),
                "content": {"type": "json_schema", "json_schema": each.get("schema", True)},
                "end": each.get("end", ""),
            }
            for each in _list(tag, "structures")
            if isinstance(each, dict)
        ]
        tag = {"format": {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}}
    if not isinstance(tag.get("format"), dict):
        raise Refused("needs format, or structures and triggers")
    return _Writer(special or {}).write(tag["format"])


class _Writer:
    """Writes one rule a node."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._rules: list[str] = []
        self._names = 0
        self._special = special
        names = sorted(special, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None

    def write(self, node: dict[str, Any]) -> str:
        top = self._node(node, "", 0)
        return "%llguidance {}\n" + "\n".join([f"start: {top}", *self._rules]) + "\n"

    def _rule(self, body: str, *, prefix: str = "r", note: str = "") -> str:
        self._names += 1
        if self._names > MAX_NODES:
            raise Refused("has too many parts")
        name = f"{prefix}{self._names}"
        self._rules.append(f"{name}{note}: {body}")
        return name

    def _node(self, node: Any, end: str, depth: int) -> str:
        """An expression for the node. `end`: the text behind it, at which free text stops."""
        if not isinstance(node, dict) or depth > 32:
            raise Refused("has a format that is no object, or nests too deeply")
        kind = node.get("type")
        write = getattr(self, f"_{kind}", None) if isinstance(kind, str) and kind in _KINDS else None
        if write is None:
            raise Refused(f"has no format of the type {str(kind)[:40]!r}")
        found: str = write(node, end, depth + 1)
        return found

    def _const_string(self, node: dict[str, Any], end: str, depth: int) -> str:
        del end, depth
        return self._text(node, "value") or '""'

    def _json_schema(self, node: dict[str, Any], end: str, depth: int) -> str:
        del end, depth
        schema = node.get("json_schema", True)
        if not isinstance(schema, dict | bool):
            raise Refused("has a json_schema that is no schema")
        if schema is False:
            raise Refused("has a json_schema that is false, which no value can satisfy")
        check_schema_ends(schema, "json_schema")
        schema = {} if schema is True else schema
        return self._rule("%json " + msgspec.json.encode(normal(schema, schema, closed=False)).decode())

    def _regex(self, node: dict[str, Any], end: str, depth: int) -> str:
        del end, depth
        pattern = node.get("pattern")
        if not isinstance(pattern, str) or not pattern:
            raise Refused("has a regex without a pattern")
        return self._rule(slashed(pattern), prefix="T")

    def _grammar(self, node: dict[str, Any], end: str, depth: int) -> str:
        del end, depth
        source = node.get("grammar")
        if not isinstance(source, str):
            raise Refused("has a grammar that is no text")
        return self._rule("%lark {\n" + from_any(source) + "\n}")

    def _any_text(self, node: dict[str, Any], end: str, depth: int) -> str:
        """Any text up to `end`; without an end, any text at all."""
        del node, depth
        return _ANY if not end else ""

    def _sequence(self, node: dict[str, Any], end: str, depth: int) -> str:
        elements = _list(node, "elements")
        parts = []
        for index, element in enumerate(elements):
            follower = elements[index + 1] if index + 1 < len(elements) else None
            known = _head(follower) if isinstance(follower, dict) else end
            if isinstance(element, dict) and element.get("type") == "any_text" and known:
                parts.append(self._lazy(known))
                if isinstance(follower, dict):
                    elements[index + 1] = _without_head(follower, known)
            else:
                parts.append(self._node(element, "", depth))
        return self._rule(" ".join(part for part in parts if part) or '""')

    def _or(self, node: dict[str, Any], end: str, depth: int) -> str:
        return self._rule(" | ".join(self._node(each, end, depth) for each in _list(node, "elements")))

    def _optional(self, node: dict[str, Any], end: str, depth: int) -> str:
        return self._rule(f"({self._node(node.get('content'), end, depth)})?")

    def _star(self, node: dict[str, Any], end: str, depth: int) -> str:
        return self._rule(f"({self._node(node.get('content'), end, depth)})*")

    def _plus(self, node: dict[str, Any], end: str, depth: int) -> str:
        return self._rule(f"({self._node(node.get('content'), end, depth)})+")

    def _tag(self, node: dict[str, Any], end: str, depth: int) -> str:
        del end
        return self._rule(
            " ".join(part for part in (self._text(node, "begin"), self._tail(node, depth)) if part) or '""'
        )

    def _tail(self, node: dict[str, Any], depth: int) -> str:
        """What follows a tag's begin: the content and the end."""
        content, end = node.get("content"), node.get("end", "")
        if isinstance(content, dict) and content.get("type") == "any_text" and isinstance(end, str) and end:
            return self._lazy(end)
        return " ".join(part for part in (self._node(content, "", depth), self._text(node, "end")) if part)

    def _tags_with_separator(self, node: dict[str, Any], end: str, depth: int) -> str:
        tags = [{"type": "tag", **each} if isinstance(each, dict) else each for each in _list(node, "tags")]
        one = self._rule(" | ".join(self._node(each, end, depth) for each in tags))
        separator = self._text(node, "separator")
        body = one if node.get("stop_after_first") else f"{one} ({separator} {one})*"
        return self._rule(body if node.get("at_least_one") else f"({body})?")

    def _triggered_tags(self, node: dict[str, Any], end: str, depth: int) -> str:
        """Free text in which each trigger must go on as one of the tags that begin with it."""
        del end
        tags, triggers = _list(node, "tags"), node.get("triggers")
        if not isinstance(triggers, list) or not all(isinstance(each, str) and each for each in triggers):
            raise Refused("needs triggers")
        calls = []
        for trigger in dict.fromkeys(triggers):
            tails = []
            for each in tags:
                begin = each.get("begin") if isinstance(each, dict) else None
                if isinstance(begin, str) and begin.startswith(trigger):
                    rest = self._quote(begin[len(trigger) :]) if len(begin) > len(trigger) else ""
                    tails.append(f"{rest} {self._tail(each, depth)}".strip() or '""')
            if tails:
                calls.append(f"{self._lazy(trigger)} {self._rule(' | '.join(tails))}")
        if not calls:
            raise Refused("has no tag that begins with a trigger")
        call = self._rule(" | ".join(calls))
        if node.get("stop_after_first"):
            return call if node.get("at_least_one") else self._rule(f"{call} | {self._free()}")
        repeat = "+" if node.get("at_least_one") else "*"
        return self._rule(f"({call}){repeat} {self._free()}")

    def _free(self) -> str:
        return self._rule(_ANY, prefix="T")

    def _lazy(self, end: str) -> str:
        """The shortest text that ends with `end`."""
        parts = self._parts(end)
        if len(parts) == 1 and parts[0] == end and end not in self._special:
            return self._rule(f"{_ANY} {quote(end)}", prefix="t", note="[lazy]")
        if parts[0] not in self._special:
            raise Refused("has a special token in the middle of a text that free text stops at")
        return self._rule(f"{self._free()} {self._quote(end)}")

    def _parts(self, text: str) -> list[str]:
        return [part for part in self._cut.split(text) if part] if self._cut else [text]

    def _quote(self, text: str) -> str:
        """The text as Lark strings and tokens."""
        return " ".join(
            f"<[{self._special[part]}]>" if part in self._special else quote(part) for part in self._parts(text)
        )

    def _text(self, node: dict[str, Any], key: str) -> str:
        value = node.get(key, "")
        if not isinstance(value, str):
            raise Refused(f"has a {key} that is no text")
        return self._quote(value) if value else ""


_KINDS = {
    "const_string",
    "json_schema",
    "regex",
    "grammar",
    "any_text",
    "tag",
    "sequence",
    "or",
    "optional",
    "star",
    "plus",
    "triggered_tags",
    "tags_with_separator",
}


def quote(text: str) -> str:
    """A Lark string."""
    return msgspec.json.encode(text).decode()


def _list(node: dict[str, Any], key: str) -> list[Any]:
    value = node.get(key)
    if not isinstance(value, list) or not value:
        raise Refused(f"has a format without {key}")
    return list(value)


def _head(node: dict[str, Any]) -> str:
    """The text that an element begins with, as far as it says so."""
    text = node.get({"const_string": "value", "tag": "begin"}.get(str(node.get("type")), ""), "")
    return text if isinstance(text, str) else ""


def _without_head(node: dict[str, Any], head: str) -> dict[str, Any]:
    """The element behind a free text that already took its first text."""
    if node.get("type") == "const_string":
        return {**node, "value": ""}
    return {**node, "begin": node["begin"][len(head) :]}


def slashed(pattern: str) -> str:
    """A regular expression as a terminal."""
    from llguidance import regex_to_lark

    return f"/{regex_to_lark(pattern)}/"
