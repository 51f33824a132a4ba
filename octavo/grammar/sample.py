"""A short text that a regular expression matches, read off the expression. What is not simple is left to a search."""

import re
from collections.abc import Iterable
from re import _parser  # type: ignore[attr-defined]  # the one description of its trees, which hypothesis reads too
from typing import Any

MAX_TEXT = 1024
_ANY = "a0A -_."
_OF_CATEGORY = {
    "CATEGORY_DIGIT": "0",
    "CATEGORY_NOT_DIGIT": "a",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": "a",
    "CATEGORY_WORD": "a",
    "CATEGORY_NOT_WORD": " ",
}


def sample(pattern: str) -> str | None:
    """A text of at most MAX_TEXT characters that most likely matches as a whole; to be looked at once more."""
    try:
        text = _all(_parser.parse(pattern))
    except (re.error, RecursionError, OverflowError, _Unknown):
        return None
    return text if len(text) <= MAX_TEXT else None


class _Unknown(Exception):
    """A part that no text is known for."""


def _all(parts: Iterable[tuple[Any, Any]]) -> str:
    text = ""
    for kind, value in parts:
        text += _one(str(kind), value)
        if len(text) > MAX_TEXT:
            raise _Unknown
    return text


def _one(kind: str, value: Any) -> str:
    match kind:
        case "LITERAL":
            return chr(value)
        case "NOT_LITERAL":
            return "b" if value == ord("a") else "a"
        case "ANY":
            return "a"
        case "IN":
            return _of_class(value)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _all(value[2]) * min(int(value[0]), MAX_TEXT + 1) if value[0] else ""
        case "SUBPATTERN":
            return _all(value[3])
        case "BRANCH":
            return min((_all(way) for way in value[1]), key=len)
        case "AT":
            return ""
    raise _Unknown


def _of_class(items: list[tuple[Any, Any]]) -> str:
    kind, value = items[0]
    match str(kind):
        case "LITERAL":
            return chr(value)
        case "RANGE":
            return chr(value[0])
        case "CATEGORY":
            return _OF_CATEGORY[str(value)]
    # Negated.
    barred = [_bounds(str(kind), value) for kind, value in items[1:]]
    found = next((char for char in _ANY if not any(low <= ord(char) <= high for low, high in barred)), None)
    if found is None:
        raise _Unknown
    return found


def _bounds(kind: str, value: Any) -> tuple[int, int]:
    if kind == "CATEGORY":
        raise _Unknown
    return value if kind == "RANGE" else (value, value)
