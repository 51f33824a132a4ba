"""JSON as it comes: each piece checked and passed on at once (RFC 8259).

Two things that models get wrong are mended on the way, so that what is passed on is JSON: control characters inside
strings, and backslashes that escape nothing.
"""

import re
from functools import cache

from octavo.text.parse.base import Steps
from octavo.text.parse.source import Sink, Source

MAX_DEPTH = 128
MAX_SCALAR = 4096

_WS = r"[ \t\r\n]*+"
_SAID = r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))'
_STRING = rf'"{_SAID}*+"'
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"


def _flat(levels: int) -> str:
    """A pattern of whole values that nest at most so deep."""
    inner = _flat(levels - 1) if levels else "(?!)"
    items = rf"\[{_WS}(?:{inner}{_WS}(?:,{_WS}{inner}{_WS})*+)?+\]"
    member = rf"{_STRING}{_WS}:{_WS}{inner}{_WS}"
    members = rf"\{{{_WS}(?:{member}(?:,{_WS}{member})*+)?+\}}"
    return rf"(?:{_STRING}|{_NUMBER}|true|false|null|{items}|{members})"


@cache
def _run_of(container: str) -> re.Pattern[str]:
    """Runs of whole members at once: what makes text that comes in large pieces quick to read. A value that such a run
    has failed at is looked at again once a level, of which there are two. Compiling one takes ten milliseconds."""
    name = rf"{_STRING}{_WS}:{_WS}" if container == "{" else ""
    return re.compile(rf"(?:{_WS}{name}{_flat(2)}{_WS},)++")


_WHOLE_STRING = re.compile(_STRING)
_WHOLE_SCALAR = re.compile(rf"{_NUMBER}|true|false|null")
_SPACE = re.compile(_WS)
_PLAIN = re.compile(rf"{_SAID}++")
_WORD = re.compile(r"[-+.0-9a-zA-Z]++")
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")


def value(source: Source, sink: Sink) -> Steps[bool]:
    """Passes one value on, without whitespace round it. False at what is no JSON, behind which reading stops."""
    first = yield from source.peek()
    if first not in ("{", "["):
        return (yield from scalar(source, sink))
    stack: list[str] = []
    while True:
        # Here a value, or the end of an empty container, may stand.
        yield from space(source, sink)
        char = yield from source.peek()
        if char in ("{", "[") and len(stack) < MAX_DEPTH:
            stack.append(char)
            sink(source.take(source.at + 1))
            yield from space(source, sink)
            char = yield from source.peek()
            if char != ("}" if stack[-1] == "{" else "]"):
                if not (yield from _next(source, sink, stack[-1])):
                    return False
                continue
        elif not (yield from scalar(source, sink)):
            return False
        while True:  # behind a value: close containers, or go on behind a comma
            if stack:
                yield from space(source, sink)
            char = yield from source.peek()
            if char == ("}" if stack[-1] == "{" else "]"):
                sink(source.take(source.at + 1))
                stack.pop()
                if not stack:
                    return True
                continue
            if char != ",":
                return False
            sink(source.take(source.at + 1))
            if not (yield from _next(source, sink, stack[-1])):
                return False
            break


def _next(source: Source, sink: Sink, container: str) -> Steps[bool]:
    """Passes on what stands before the next value: runs of whole members, and in an object its key."""
    run = _run_of(container).match(source.text, source.at)
    if run:
        sink(source.take(run.end()))
    if container == "[":
        return True
    yield from space(source, sink)
    if (yield from source.peek()) != '"' or not (yield from string(source, sink)):
        return False
    yield from space(source, sink)
    if (yield from source.peek()) != ":":
        return False
    sink(source.take(source.at + 1))
    return True


def space(source: Source, sink: Sink) -> Steps[None]:
    """Passes whitespace on."""
    while True:
        found = _SPACE.match(source.text, source.at)
        if found and found.end() > source.at:
            sink(source.take(found.end()))
        if source.at < len(source.text) or source.ended:
            return
        yield


def scalar(source: Source, sink: Sink) -> Steps[bool]:
    """Passes a string, number or word on."""
    if (yield from source.peek()) == '"':
        return (yield from string(source, sink))
    word = yield from source.run(_WORD, MAX_SCALAR)
    sink(word)  # also a wrong one: nothing may be lost
    return _WHOLE_SCALAR.fullmatch(word) is not None


def string(source: Source, sink: Sink) -> Steps[bool]:
    """Passes a string on, quotes included; False if it does not end."""
    whole = _WHOLE_STRING.match(source.text, source.at)
    if whole:
        sink(source.take(whole.end()))
        return True
    sink(source.take(source.at + 1))
    while True:
        char = yield from source.peek()
        if char == "":
            return False
        if char == '"':
            sink(source.take(source.at + 1))
            return True
        said = _PLAIN.match(source.text, source.at)
        if said:
            sink(source.take(said.end()))
        elif char == "\\":
            yield from _escape(source, sink)
        else:
            source.take(source.at + 1)
            sink(f"\\u{ord(char):04x}" if char not in _SHORT else _SHORT[char])


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def _escape(source: Source, sink: Sink) -> Steps[None]:
    """Passes an escape on; a backslash that begins none is doubled."""
    while len(source.text) - source.at < 2 and not source.ended:
        yield
    if source.text.startswith("\\u", source.at):
        while len(source.text) - source.at < 6 and not source.ended:
            tail = source.text[source.at + 2 :]
            if tail and not all(char in "0123456789abcdefABCDEF" for char in tail):
                break
            yield
        if _HEX4.match(source.text, source.at + 2):
            sink(source.take(source.at + 6))
            return
    elif source.at + 1 < len(source.text) and source.text[source.at + 1] in '"\\/bfnrt':
        sink(source.take(source.at + 2))
        return
    source.take(source.at + 1)
    sink("\\\\")
