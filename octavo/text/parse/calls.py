"""A call as a JSON object, ``{"name": ..., "arguments": {...}}``: what most dialects write between their marks.

A call is announced when its name and the first brace of its arguments are there. What is no call up to that point
leaves no trace but the source's record, which the caller gives back as text.
"""

import re
from enum import Enum, auto

import msgspec

from octavo.text.parse import json_reader
from octavo.text.parse.base import Steps, ToolSchemas
from octavo.text.parse.out import Out
from octavo.text.parse.source import Source

MAX_NAME = 256
NAME = re.compile(r"[A-Za-z0-9_.:/-]++")
_CALLABLE = re.compile(r"[^\s\"'<>{}\[\]()]{1,256}")


class Outcome(Enum):
    """How reading a call went."""

    CALLED = auto()  # announced and ended
    BROKEN = auto()  # announced, then the format broke; it has been ended
    NONE = auto()  # not announced


class Envelope:
    """The names of an object's fields. `known`: only calls of tools that the request has count."""

    def __init__(self, *, known: ToolSchemas | None = None, needs_arguments: bool = False) -> None:
        self.known = known
        self.needs_arguments = needs_arguments

    def fits(self, name: str) -> bool:
        """Whether `name` may be called."""
        return is_name(name) and (self.known is None or name in self.known)


MARKED = Envelope()
_NAMES = ("name", "function", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_OTHERS = ("id", "type", "index", "tool_call_id", "call_id")


def is_name(name: str) -> bool:
    """Whether this can be the name of a tool."""
    return _CALLABLE.fullmatch(name) is not None


def call_object(source: Source, out: Out, envelope: Envelope = MARKED) -> Steps[Outcome]:
    """Reads one object, its opening brace included."""
    if not (yield from source.skip("{")):
        return Outcome.NONE
    reader = _CallReader(source, out, envelope)
    sound = yield from reader.fields()
    if reader.started:
        out.end()
        return Outcome.CALLED if reader.complete else Outcome.BROKEN
    if sound and reader.name and (reader.held is not None or not envelope.needs_arguments):
        source.kept()
        emit(out, reader.name, reader.held or "{}", reader.id)
        return Outcome.CALLED
    return Outcome.NONE


class _CallReader:
    def __init__(self, source: Source, out: Out, envelope: Envelope) -> None:
        self.source = source
        self.out = out
        self.envelope = envelope
        self.name = ""
        self.id = ""
        self.held: str | None = None  # arguments that came before the name
        self.started = False
        self.complete = False

    def fields(self) -> Steps[bool]:
        """All fields and the closing brace; False when they are not those of a call."""
        source = self.source
        yield from source.space()
        if (yield from source.skip("}")):
            return False
        while True:
            yield from source.space()
            key = yield from self._text()
            yield from source.space()
            if key is None or not (yield from source.skip(":")):
                return False
            yield from source.space()
            if not (yield from self._field(key)):
                return False
            yield from source.space()
            if (yield from source.skip("}")):
                return True
            if not (yield from source.skip(",")):
                return False

    def _field(self, key: str) -> Steps[bool]:
        if key in _NAMES and not self.name:
            name = yield from self._text()
            if name is None or not self.envelope.fits(name):
                return False
            self.name = name
            return True
        if key in _ARGUMENTS and not self.complete and self.held is None:
            return (yield from self._arguments())
        if not self.started and key not in _OTHERS:
            return False
        parts: list[str] = []
        sound = yield from json_reader.value(self.source, parts.append)
        if key in ("id", "call_id", "tool_call_id") and sound and not self.started:
            given = decoded("".join(parts))
            self.id = given[:256] if isinstance(given, str) else ""
        return sound

    def _arguments(self) -> Steps[bool]:
        source = self.source
        first = yield from source.peek()
        if first == "{" and self.name:
            self.started = True
            source.kept()
            self.out.start(self.name, self.id)
            self.complete = yield from json_reader.value(source, self.out.arguments)
            return self.complete
        parts: list[str] = []
        if not (yield from json_reader.value(source, parts.append)):
            return False
        arguments = as_object("".join(parts))
        self.held = arguments
        return arguments is not None

    def _text(self) -> Steps[str | None]:
        if (yield from self.source.peek()) != '"':
            return None
        parts: list[str] = []
        if not (yield from json_reader.string(self.source, parts.append)):
            return None
        text = decoded("".join(parts))
        return text if isinstance(text, str) else None


def call_list(source: Source, out: Out, envelope: Envelope = MARKED) -> Steps[Outcome]:
    """Reads ``[{...}, {...}]``: CALLED when all of it was sound; NONE when not even one call was."""
    if not (yield from source.skip("[")):
        return Outcome.NONE
    before = out.calls
    while True:
        yield from source.space()
        if out.calls > before and (yield from source.skip("]")):
            return Outcome.CALLED
        if out.calls > before:
            source.keep()
        outcome = yield from call_object(source, out, envelope)
        if outcome is not Outcome.CALLED:
            if outcome is Outcome.NONE and out.calls > before:
                out.text(source.kept())
            return outcome if out.calls == before else Outcome.BROKEN
        yield from source.space()
        if (yield from source.skip("]")):
            return Outcome.CALLED
        source.keep()
        if not (yield from source.skip(",")):
            out.text(source.kept())
            return Outcome.BROKEN
        source.kept()


def arguments_of(source: Source, out: Out, name: str, given_id: str = "") -> Steps[Outcome]:
    """Reads a call's bare arguments, an object; nothing but whitespace before a mark counts as none."""
    if (yield from source.peek()) != "{":
        return Outcome.NONE
    source.kept()
    out.start(name, given_id)
    sound = yield from json_reader.value(source, out.arguments)
    out.end()
    return Outcome.CALLED if sound else Outcome.BROKEN


def emit(out: Out, name: str, arguments: str, given_id: str = "") -> None:
    """A whole call at once."""
    out.start(name, given_id)
    out.arguments(arguments)
    out.end()


def decoded(text: str) -> object:
    """The value of sound JSON text; None if it cannot be held."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def as_object(text: str) -> str | None:
    """Arguments as an object's JSON text: as they are, out of a string that holds them, or empty for null."""
    if text.startswith("{"):
        return text
    if text == "null":
        return "{}"
    inner = decoded(text)
    if isinstance(inner, str) and isinstance(decoded(inner), dict):
        return inner
    return "{}" if inner == "" else None
