"""Feeding parsers in every way, and putting their events together again."""

import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from octavo.text.parse.base import Event, Reasoning, Text, ToolArguments, ToolEnd, ToolSchemas, ToolStart
from octavo.text.parse.parser import Parser, Reader, message_reader
from octavo.text.parse.registry import reasoning_parser, tool_parser


def tool(name: str, required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool(
        "get_weather",
        city={"type": "string"},
        days={"type": "integer"},
        exact={"type": "boolean"},
        where={"type": "object", "properties": {"lat": {"type": "number"}, "tags": {"type": "array"}}},
        tags={"type": "array", "items": {"type": "string"}},
        unit={"type": "string", "enum": ["c", "f"]},
    ),
    tool("now"),
    tool("write", text={"type": "string"}, note={"type": ["string", "null"]}, any={}),
]
SCHEMAS = ToolSchemas(TOOLS)


def reader(tools: str | None = None, thoughts: str | None = None, schemas: ToolSchemas = SCHEMAS) -> Reader:
    dialect = tool_parser(tools) if tools else None
    if hasattr(dialect, "read_message"):
        return lambda source, out, state: dialect.read_message(source, out, schemas, state)
    return message_reader(reasoning_parser(thoughts) if thoughts else None, dialect, schemas)


def parser(tools: str | None = None, thoughts: str | None = None, opened: bool = False) -> Parser:
    numbers = count()
    return Parser(reader(tools, thoughts), opened=opened, new_id=lambda: f"id{next(numbers)}")


class Said:
    """Events put together, with the rules of a stream checked on the way."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.text = self.reasoning = ""
        self.calls: list[list[Any]] = []
        self.ids: list[str] = []
        inside = False
        for event in events:
            if isinstance(event, ToolStart):
                assert not inside
                assert event.index == len(self.calls)
                inside = True
                self.calls.append([event.name, ""])
                self.ids.append(event.id)
            elif isinstance(event, ToolArguments):
                assert inside
                assert event.delta
                assert event.index == len(self.calls) - 1
                self.calls[-1][1] += event.delta
            elif isinstance(event, ToolEnd):
                assert inside
                assert event.index == len(self.calls) - 1
                inside = False
            elif isinstance(event, Reasoning):
                assert not inside
                assert event.text
                self.reasoning += event.text
            else:
                assert isinstance(event, Text)
                assert not inside
                assert event.text
                self.text += event.text
        assert not inside

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Said) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(vars(self))

    @property
    def parsed(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def say(pieces: Iterable[str], **of: Any) -> Said:
    """What a parser makes of text in these pieces."""
    own = parser(**of)
    events = [event for piece in pieces for event in own.feed(piece)]
    return Said([*events, *own.finish()])


def say_all_ways(text: str, **of: Any) -> Said:
    """The same text whole, by characters, and cut in two at every place."""
    whole = say([text], **of)
    assert say(text, **of) == whole
    for cut in range(1, len(text)):
        assert say([text[:cut], text[cut:]], **of) == whole, f"cut at {cut}: {text[:cut]!r}"
    return whole
