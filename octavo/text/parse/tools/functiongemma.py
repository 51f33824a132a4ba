"""``<start_function_call>call:name{key:<escape>text<escape>,n:1}<end_function_call>``: FunctionGemma.

Gemma 4 writes the same between marks of its own. Source: Google's page on FunctionGemma's formatting.
"""

import re
from collections.abc import Collection
from typing import Any

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import is_name
from octavo.text.parse.gemma_reader import GemmaReader
from octavo.text.parse.lark import (
    Frame,
    Terms,
    choices_of,
    frame_calls,
    in_order,
    json_rule,
    properties,
    quoted,
    text_then,
)
from octavo.text.parse.marked import close, marked
from octavo.text.parse.out import Out
from octavo.text.parse.source import Source

_NAME = re.compile(r"[^\s{}<>:]++")
_MAX_NESTING = 8


class FunctionGemma:
    """The dialect."""

    opening, closing, delimiter = "<start_function_call>", "<end_function_call>", "<escape>"

    def __init__(self) -> None:
        self.marks: tuple[str, ...] = (self.opening, self.closing, self.delimiter)
        self.triggers: tuple[str, ...] = (self.opening,)
        self._reader = GemmaReader(self.delimiter)

    def recognise(self, template: str, specials: Collection[str]) -> int:
        """Its mark."""
        return 50 if self.opening in template or self.opening in specials else 0

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:  # noqa: ARG002
        """Text, and calls between marks."""
        yield from marked(source, out, self.opening, self._call)

    def _call(self, source: Source, out: Out) -> Steps[bool]:
        yield from source.space()
        if not (yield from source.skip("call:")):
            return False
        name = yield from source.run(_NAME, 256)
        yield from source.space()
        if not is_name(name) or (yield from source.peek()) != "{":
            return False
        source.kept()
        out.start(name)
        yield from self._reader.fields(source, out.arguments)
        out.end()
        yield from close(source, out, self.closing)
        return True

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """Arguments in the order of the schema."""

        def call(name: str, rule: str) -> str:
            return f'{quoted(f"call:{name}{{")} {rule} "}}"'

        def arguments(schemas: ToolSchemas, name: str, own: str) -> str:
            return "\n".join(_fields(properties(schemas, name), own, terms, self.delimiter, 0))

        frame = Frame(terms.mark(self.opening), "", terms.mark(self.closing), terms.mark(self.opening))
        return frame_calls(tools, choice, frame, call, arguments)


class Gemma4(FunctionGemma):
    """``<|tool_call>call:name{key:<|"|>text<|"|>,n:1}<tool_call|>``."""

    opening, closing, delimiter = "<|tool_call>", "<tool_call|>", '<|"|>'


def _fields(entries: list[tuple[str, Any, bool]], own: str, terms: Terms, delimiter: str, depth: int) -> list[str]:
    def rules(item: str, key: str, schema: Any) -> list[str]:
        return [f"{item}: {quoted(key + ':')} {item}_v", *_value(schema, f"{item}_v", terms, delimiter, depth)]

    return in_order(own, entries, '","', rules)


def _value(schema: Any, own: str, terms: Terms, delimiter: str, depth: int) -> list[str]:
    """Rules for one value. What the notation's own rules do not cover is left to JSON without strings."""
    schema = schema if isinstance(schema, dict) else {}
    values, kind = choices_of(schema), schema.get("type")
    if values is not None:
        mark = terms.mark(delimiter)
        return [f"{own}: {mark} ({' | '.join(map(quoted, values))}) {mark}"]
    if kind == "string":
        return [f"{own}: {terms.mark(delimiter)} {own}_t", *text_then(f"{own}_t", terms, delimiter, schema=schema)]
    if kind == "array" and depth < _MAX_NESTING:
        inner = _value(schema.get("items"), f"{own}_i", terms, delimiter, depth + 1)
        return [f'{own}: "[" ({own}_i ("," {own}_i)*)? "]"', *inner]
    if kind == "object" and isinstance(schema.get("properties"), dict) and depth < _MAX_NESTING:
        required = schema.get("required") or []
        entries = [(key, each, key in required) for key, each in schema["properties"].items()]
        return [f'{own}: "{{" {own}_o "}}"', *_fields(entries, f"{own}_o", terms, delimiter, depth + 1)]
    return [f"{own}: {json_rule(schema)}"]
