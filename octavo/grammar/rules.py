"""What the rules of a Lark grammar are made of: for each, its ways, and for each way the rules it cannot do without.

Only that. Texts, patterns and whatever may be left out name nobody, so that a way of those alone is empty.
"""

import re
from collections.abc import Iterator

Rules = dict[str, list[frozenset[str]]]
"""Ways by the name of a rule."""

MAX_DEPTH = 200
MAX_WAYS = 64  # of a group inside a way; more are taken for one that needs nobody
_ANY: list[frozenset[str]] = [frozenset()]
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|\#[^\n]*)
    |(?P<block>%(?:json|regex|lark|llguidance|grammar)\s*(?=\{))
    |(?P<line>%(?:ignore|import|declare)[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"i?|/(?![/*])(?:[^/\\\n]|\\.)+/[a-z]*|<[^<>\s][^<>\n]*>)
    |(?P<count>\{\s*(?P<least>\d*)\s*(?:,\s*\d*\s*)?\}|~\s*(?P<times>\d+)(?:\s*\.\.\s*\d+)?)
    |(?P<name>[?!]?[A-Za-z_][A-Za-z0-9_]*)(?P<head>(?:\.-?\d+)?(?:\[[^\[\]\n]*\]|\{[^{}\n]*\})?\s*:(?!:))?
    |(?P<mark>->\s*[A-Za-z_]\w*|\.\.|[|()\[\]?*+&~])""",
    re.VERBOSE,
)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def read_rules(source: str) -> Rules | None:
    """None for a grammar that is not understood here."""
    rules: Rules = {}
    try:
        reader = _Reader(list(_tokens(source)))
        while (name := reader.head()) is not None:
            rules.setdefault(name, []).extend(reader.ways(0))
        return rules if reader.is_done else None
    except _NotUnderstood:
        return None


class _NotUnderstood(Exception):
    """What this reader does not know; an engine may."""


def _tokens(source: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each."""
    at = 0
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            raise _NotUnderstood
        at = found.end()
        kind = found.lastgroup
        if found["block"]:
            at = _behind_block(source, at)
            if not found["block"].startswith("%llguidance"):
                yield "text", found["block"]
        elif found["name"]:
            yield ("head" if found["head"] else "name"), found["name"].lstrip("?!")
        elif found["count"]:
            yield "count", found["least"] or found["times"] or "0"
        elif found["text"] or found["mark"]:
            yield ("text" if found["text"] else "mark"), found[0]
        else:
            assert kind in ("space", "line")


def _behind_block(source: str, at: int) -> int:
    """The place behind the bracket that closes the one at `at`."""
    depth = 0
    while at < len(source):
        if source[at] == '"':
            found = _STRING.match(source, at)
            if found is None:
                break
            at = found.end()
            continue
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        at += 1
        if not depth:
            return at
    raise _NotUnderstood


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def is_done(self) -> bool:
        return self._at == len(self._tokens)

    def head(self) -> str | None:
        """The name of the rule that begins here."""
        kind, text = self._next()
        if kind != "head":
            return None
        self._at += 1
        return text

    def ways(self, depth: int) -> list[frozenset[str]]:
        """Alternatives up to the end of the rule or of the group."""
        if depth > MAX_DEPTH:
            raise _NotUnderstood
        found = self._way(depth)
        while self._next() == ("mark", "|"):
            self._at += 1
            found += self._way(depth)
        return found

    def _next(self) -> tuple[str, str]:
        return ("end", "") if self.is_done else self._tokens[self._at]

    def _way(self, depth: int) -> list[frozenset[str]]:
        """What stands one behind the other."""
        found = _ANY
        while True:
            kind, text = self._next()
            if kind in ("head", "end") or (kind == "mark" and text in ("|", ")", "]")):
                return list(found)
            self._at += 1
            if kind == "mark" and text not in ("(", "[", "~"):  # &, .. and names of ways
                if text in ("?", "*", "+"):
                    raise _NotUnderstood
                continue
            inner = self._repeated(self._atom(kind, text, depth))
            both = [one | other for one in found for other in inner]
            found = both if len(both) <= MAX_WAYS else _ANY

    def _atom(self, kind: str, text: str, depth: int) -> list[frozenset[str]]:
        if kind == "name":
            return [frozenset((text,))]
        if kind == "text":
            return _ANY
        if text == "~":  # anything but what follows
            kind, text = self._next()
            self._at += 1
            self._atom(kind, text, depth + 1)
            return _ANY
        if text not in ("(", "["):
            raise _NotUnderstood
        inner = self.ways(depth + 1)
        if self._next() != ("mark", ")" if text == "(" else "]"):
            raise _NotUnderstood
        self._at += 1
        return inner if text == "(" else _ANY

    def _repeated(self, inner: list[frozenset[str]]) -> list[frozenset[str]]:
        kind, text = self._next()
        if kind == "count":
            self._at += 1
            return inner if int(text) else _ANY
        if kind == "mark" and text in ("?", "*", "+"):
            self._at += 1
            return inner if text == "+" else _ANY
        return inner
