"""Python literals as they come, turned to JSON: strings, numbers, True, False, None, lists, tuples and dicts.

JSON's own words are read too. Strings are passed on whole; what is no literal ends the reading.
"""

import re

from octavo.text.parse.base import Steps
from octavo.text.parse.source import Sink, Source
from octavo.text.parse.values import quote

MAX_DEPTH = 64
_WORD = re.compile(r"[-+.0-9a-zA-Z_]++")
_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*+(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "\n": "",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "0": "\0",
    "/": "/",
}
_HEX = {"x": 2, "u": 4, "U": 8}
_PLAIN = {"'": re.compile(r"[^'\\]++"), '"': re.compile(r'[^"\\]++')}
_CLOSERS = {"[": "]", "{": "}", "(": ")"}


def value(source: Source, sink: Sink, depth: int = 0) -> Steps[bool]:
    """Passes one literal on as JSON; False at what is none."""
    char = yield from source.peek()
    if char in ("'", '"'):
        text = yield from string(source)
        if text is None:
            return False
        sink(quote(text))
        return True
    if char in _CLOSERS:
        return depth < MAX_DEPTH and (yield from _container(source, sink, char, depth))
    word = yield from source.run(_WORD, 4096)
    if word in _WORDS:
        sink(_WORDS[word])
        return True
    if not _NUMBER.fullmatch(word):
        return False
    sink(_json_number(word))
    return True


def _container(source: Source, sink: Sink, opener: str, depth: int) -> Steps[bool]:
    source.take(source.at + 1)
    is_dict = opener == "{"
    sink("{" if is_dict else "[")

    def entry(lead: str) -> Steps[bool]:
        sink(lead)
        if is_dict:
            key = yield from string(source)
            if key is None:
                return False
            yield from source.space()
            if not (yield from source.skip(":")):
                return False
            sink(quote(key) + ": ")
            yield from source.space()
        return (yield from value(source, sink, depth + 1))

    if not (yield from source.separated(_CLOSERS[opener], entry)):
        return False
    sink("}" if is_dict else "]")
    return True


def string(source: Source) -> Steps[str | None]:
    """A quoted string's text, in single, double or triple quotes; None if there is none or it does not end."""
    mark = yield from source.peek()
    if mark not in _PLAIN:
        return None
    source.take(source.at + 1)
    triple = yield from source.skip(mark * 2)
    if not triple and (yield from source.skip(mark)):
        return ""
    parts: list[str] = []
    while True:
        char = yield from source.peek()
        if char == "":
            return None
        if char == "\\":
            parts.append((yield from _escape(source)))
        elif char == mark:
            if not triple:
                source.take(source.at + 1)
                return "".join(parts)
            if (yield from source.skip(mark * 3)):
                return "".join(parts)
            parts.append(source.take(source.at + 1))
        else:
            found = _PLAIN[mark].match(source.text, source.at)
            assert found is not None
            parts.append(source.take(found.end()))


def _escape(source: Source) -> Steps[str]:
    source.take(source.at + 1)
    char = yield from source.peek()
    if char == "":
        return "\\"
    source.take(source.at + 1)
    if char in _HEX:
        width = _HEX[char]
        while len(source.text) - source.at < width and not source.ended:
            yield
        digits = source.text[source.at : source.at + width]
        if len(digits) == width and all(digit in "0123456789abcdefABCDEF" for digit in digits):
            number = int(digits, 16)
            if number <= 0x10FFFF and not 0xD800 <= number < 0xE000:
                source.take(source.at + width)
                return chr(number)
        return "\\" + char
    return _ESCAPES.get(char, "\\" + char)


def _json_number(word: str) -> str:
    """Python's number in JSON's form."""
    sign = "-" if word.startswith("-") else ""
    whole, dot, rest = word.lstrip("+-").replace("_", "").partition(".")
    if not dot:
        head, exponent = re.split(r"(?=[eE])", whole, maxsplit=1) if re.search("[eE]", whole) else (whole, "")
        return sign + (head.lstrip("0") or "0") + exponent
    fraction = rest if rest[:1].isdigit() else "0" + rest
    return f"{sign}{whole.lstrip('0') or '0'}.{fraction}"
