"""As much of Go's templates, and of what Helm adds to them, as the chart uses: enough to see that its YAML is right."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

_ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[()|]|[^\s()|]+)')

Node = tuple[Any, ...]


class _Int(int):
    """An int to Go: a literal, or what `int` has made."""


class Templates:
    """The definitions of a chart; `render` gives one file's text."""

    def __init__(self, top: dict[str, Any], *helpers: str) -> None:
        self._top = top
        self._defined: dict[str, list[Node]] = {}
        for text in helpers:
            self.render(text)

    def render(self, text: str) -> str:
        return self._run(_parse(_pieces(text)), self._top)

    def _run(self, nodes: list[Node], dot: Any) -> str:
        out = []
        for kind, *rest in nodes:
            if kind == "text":
                out.append(rest[0])
            elif kind == "show":
                value = self._value(rest[0], dot)
                out.append("true" if value is True else "false" if value is False else str(value))
            elif kind == "define":
                self._defined[rest[0].strip('"')] = rest[1]
            elif kind in ("if", "with"):
                condition, then, otherwise = rest
                value = self._value(condition, dot)
                inside = value if kind == "with" and value else dot
                out.append(self._run(then if value else otherwise, inside))
        return "".join(out)

    def _value(self, source: str, dot: Any) -> Any:
        tokens = _TOKEN.findall(source)
        value = self._pipe(tokens, dot)
        assert not tokens, f"left over in {source!r}: {tokens}"
        return value

    def _pipe(self, tokens: list[str], dot: Any) -> Any:
        value = self._command(tokens, dot, [])
        while tokens and tokens[0] == "|":
            tokens.pop(0)
            value = self._command(tokens, dot, [value])
        return value

    def _command(self, tokens: list[str], dot: Any, last: list[Any]) -> Any:
        head = tokens.pop(0)
        if head == "(":
            value = self._pipe(tokens, dot)
            assert tokens.pop(0) == ")"
            return value
        if head[0] in '."' or head.lstrip("-").isdigit():
            return self._atom(head, dot)
        arguments = []
        while tokens and tokens[0] not in ("|", ")"):
            arguments.append(self._argument(tokens, dot))
        return self._call(head, [*arguments, *last])

    def _argument(self, tokens: list[str], dot: Any) -> Any:
        if tokens[0] != "(":
            return self._atom(tokens.pop(0), dot)
        tokens.pop(0)
        value = self._pipe(tokens, dot)
        assert tokens.pop(0) == ")"
        return value

    def _atom(self, token: str, dot: Any) -> Any:
        if token.startswith('"'):
            return token[1:-1]
        if token.lstrip("-").isdigit():
            return _Int(token)
        assert token.startswith("."), token
        for name in token[1:].split("."):
            if name:
                assert name in dot, f"{token} is not in the values"
                dot = dot[name]
        return dot

    def _call(self, name: str, given: list[Any]) -> Any:
        match name, given:
            case "include", [template, dot]:
                return self._run(self._defined[template], dot)
            case "nindent", [width, text]:
                return "\n" + "\n".join(" " * width + line if line else line for line in str(text).split("\n"))
            case "toYaml", [value]:
                return yaml.safe_dump(value, sort_keys=False).rstrip()
            case "upper", [text]:
                return text.upper()
            case "quote", [value]:
                return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
            case "printf", [form, *values]:
                return form % tuple(values)
            case "trunc", [width, text]:
                return text[:width]
            case "trimSuffix", [end, text]:
                return text.removesuffix(end)
            case "default", [other, value]:
                return value or other
            case "add", values:
                return sum(values)
            case "or", values:
                return next((value for value in values if value), values[-1])
            case "and", values:
                return next((value for value in values if not value), values[-1])
            case "not", [value]:
                return not value
            case "eq", [left, right]:
                return left == right
            case "ne", [left, right]:
                return left != right
            case "int", [value]:
                return _Int(value)
            case "gt", [left, right]:
                assert isinstance(left, _Int), "numbers of values are float64 to Go, which compares them with no int"
                return left > right
        raise AssertionError(f"unknown: {name} {given}")


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Text and actions in turn, blanks cut where a dash says so."""
    position, trim = 0, False
    for found in _ACTION.finditer(text):
        before = text[position : found.start()]
        before = before.lstrip() if trim else before
        yield "text", before.rstrip() if found[1] else before
        yield "action", found[2]
        position, trim = found.end(), bool(found[3])
    rest = text[position:]
    yield "text", rest.lstrip() if trim else rest


def _parse(pieces: Iterator[tuple[str, str]]) -> list[Node]:
    nodes, end = _block(pieces)
    assert end == "", f"{end} without a beginning"
    return nodes


def _block(pieces: Iterator[tuple[str, str]]) -> tuple[list[Node], str]:
    nodes: list[Node] = []
    for kind, content in pieces:
        word, _, rest = content.partition(" ")
        if kind == "text":
            nodes.append(("text", content))
        elif word in ("end", "else"):
            return nodes, word
        elif word == "define":
            nodes.append(("define", rest, _block(pieces)[0]))
        elif word in ("if", "with"):
            then, end = _block(pieces)
            nodes.append((word, rest, then, _block(pieces)[0] if end == "else" else []))
        else:
            nodes.append(("show", content))
    return nodes, ""
