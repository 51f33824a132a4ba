"""``<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>``: GLM 4.5 to 4.7.

Newlines between the marks are optional. Strings are plain text, all else is JSON.
"""

import re
from collections.abc import Collection
from typing import Any

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import is_name
from octavo.text.parse.lark import (
    Frame,
    Terms,
    accepts_text,
    choices_of,
    frame_calls,
    in_order,
    json_rule,
    properties,
    quoted,
    text_then,
)
from octavo.text.parse.marked import close
from octavo.text.parse.out import Out
from octavo.text.parse.source import Marks, Source
from octavo.text.parse.values import Quoter, convert, is_text, parameter_schema, quote

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_BEGIN = Marks((OPEN,))
_KEY_ENDS = Marks((_KEY_END,))
_VALUE_ENDS = Marks((_VALUE_END,))
_NAME = re.compile(r"[^<>\s]++")


class Glm45:
    """The dialect."""

    marks: tuple[str, ...] = (OPEN, CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)
    triggers: tuple[str, ...] = (OPEN,)

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """Its argument marks."""
        return 40 if _KEY in template and _VALUE in template else 0

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:
        """Text, and calls between marks."""
        while (yield from source.until(_BEGIN, out.text)):
            source.keep(OPEN)
            yield from source.space()
            name = yield from source.run(_NAME, 256)
            yield from source.space()
            begun = is_name(name) and (yield from source.skip(_KEY))
            if not begun and not (is_name(name) and (yield from source.skip(CLOSE))):
                out.text(source.kept())
                continue
            source.kept()
            out.start(name)
            out.arguments("{")
            if begun:
                yield from _arguments(source, out, name, tools)
            else:
                out.arguments("}")
                out.end()

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """Arguments in the order of the schema."""

        def arguments(schemas: ToolSchemas, name: str, own: str) -> str:
            return _arguments_rules(schemas, name, own, terms)

        def call(name: str, rule: str) -> str:
            return f"{quoted(name + chr(10))} {rule}"

        frame = Frame(terms.mark(OPEN), "", terms.mark(CLOSE), f'"\\n" {terms.mark(OPEN)}')
        return frame_calls(tools, choice, frame, call, arguments)


def _arguments(source: Source, out: Out, tool: str, tools: ToolSchemas) -> Steps[None]:
    """All arguments, from behind the first key's mark to the call's end."""
    first, begun = True, True
    while begun:
        parts: list[str] = []
        if not (yield from source.until(_KEY_ENDS, parts.append)):
            out.end()
            return
        key = "".join(parts).strip()
        yield from source.space()
        if not (yield from source.skip(_VALUE)):
            out.end()
            out.text(_KEY + "".join(parts) + _KEY_END)
            return
        out.arguments(("" if first else ", ") + quote(key) + ": ")
        first = False
        schema, root = parameter_schema(tools, tool, key)
        if is_text(schema, root):
            quoter = Quoter(out.arguments)
            ended = yield from source.until(_VALUE_ENDS, quoter.add)
            if ended:
                quoter.end()
        else:
            value: list[str] = []
            ended = yield from source.until(_VALUE_ENDS, value.append)
            text = "".join(value)
            out.arguments(convert(text, schema, root) if ended else text)
        if not ended:
            out.end()
            return
        yield from source.space()
        begun = yield from source.skip(_KEY)
    if source.ended and source.at >= len(source.text):
        out.end()  # broken off: the arguments stay open
        return
    out.arguments("}")
    out.end()
    yield from close(source, out, CLOSE)


def _arguments_rules(tools: ToolSchemas, name: str, own: str, terms: Terms) -> str:
    def rules(item: str, key: str, schema: Any) -> list[str]:
        head = f'{item}: {terms.mark(_KEY)} {quoted(key)} {terms.mark(_KEY_END)} "\\n" {terms.mark(_VALUE)}'
        tail = f'{terms.mark(_VALUE_END)} "\\n"'
        values = choices_of(schema)
        if values is not None:
            return [f"{head} ({' | '.join(map(quoted, values))}) {tail}"]
        if accepts_text(schema):
            text = text_then(f"{item}_v", terms, _VALUE_END, after="\n", schema=schema)
            return [f"{head} {item}_v", *text]
        return [f"{head} {item}_v {tail}", f"{item}_v: {json_rule(schema)}"]

    return "\n".join(in_order(own, properties(tools, name), '""', rules))
