"""``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``: Qwen3-Coder and kin.

Values are plain text with a newline on either side; the tool's schema says what they are. Strings are passed on as
they come. A parameter also ends where the next one or the function's end begins, since models leave marks out.
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
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_BEGIN = Marks((OPEN, _FUNCTION))
_VALUE_ENDS = Marks((_PARAMETER_END, _FUNCTION_END, _PARAMETER, CLOSE))
_NAME = re.compile(r"[^<>\n]++")


class Qwen3Coder:
    """The dialect."""

    marks: tuple[str, ...] = (OPEN, CLOSE)
    triggers: tuple[str, ...] = (OPEN,)

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """Its function mark."""
        return 40 if _FUNCTION in template and _PARAMETER in template else 0

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:
        """Text and calls; the outer mark may be missing."""
        while True:
            mark = yield from source.until(_BEGIN, out.text)
            if not mark:
                return
            source.keep(mark)
            if mark == OPEN:
                yield from source.space()
            if mark == OPEN and not (yield from source.skip(_FUNCTION)):
                out.text(source.kept())
                continue
            name = (yield from source.run(_NAME, 256)).strip()
            if not is_name(name) or not (yield from source.skip(">")):
                out.text(source.kept())
                continue
            source.kept()
            yield from self._call(source, out, name, tools)

    def _call(self, source: Source, out: Out, name: str, tools: ToolSchemas) -> Steps[None]:
        out.start(name)
        out.arguments("{")
        first = True
        yield from source.space()
        begun = yield from source.skip(_PARAMETER)
        while begun:
            key = (yield from source.run(_NAME, 1024)).strip()
            if not (yield from source.skip(">")):
                out.end()
                out.text(_PARAMETER + key)
                return
            out.arguments(("" if first else ", ") + quote(key) + ": ")
            first = False
            end = yield from _value(source, out, name, key, tools)
            if not end:
                out.end()
                return
            if end == _PARAMETER_END:
                yield from source.space()
                begun = yield from source.skip(_PARAMETER)
            else:
                begun = end == _PARAMETER
            if end in (_FUNCTION_END, CLOSE):
                yield from self._end(source, out, end == CLOSE)
                return
        if source.ended and source.at >= len(source.text):
            out.end()  # broken off: the arguments stay open
            return
        yield from source.skip(_FUNCTION_END)
        yield from self._end(source, out, False)

    def _end(self, source: Source, out: Out, closed: bool) -> Steps[None]:
        out.arguments("}")
        out.end()
        if not closed:
            yield from close(source, out, CLOSE)

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """Parameters in the order of the schema."""

        def call(name: str, rule: str) -> str:
            return f'{quoted(f"<function={name}>" + chr(10))} {rule} "</function>"'

        frame = Frame(terms.mark(OPEN), '"\\n"', f'"\\n" {terms.mark(CLOSE)}', f'"\\n" {terms.mark(OPEN)} "\\n"')
        return frame_calls(tools, choice, frame, call, _arguments_rules)


def _value(source: Source, out: Out, tool: str, key: str, tools: ToolSchemas) -> Steps[str]:
    """One value; returns the mark behind it, "" if the text ended first."""
    schema, root = parameter_schema(tools, tool, key)
    if is_text(schema, root):
        quoter = Quoter(out.arguments, trim=True)
        end = yield from source.until(_VALUE_ENDS, quoter.add)
        if end:
            quoter.end()
        return end
    parts: list[str] = []
    end = yield from source.until(_VALUE_ENDS, parts.append)
    text = "".join(parts)
    if not end:
        out.arguments(text)
        return ""
    text = text.removeprefix("\n").removesuffix("\n")
    out.arguments(convert(text, schema, root))
    return end


def _arguments_rules(tools: ToolSchemas, name: str, own: str) -> str:
    def rules(item: str, key: str, schema: Any) -> list[str]:
        head, tail = f"{item}: {quoted(f'<parameter={key}>' + chr(10))}", quoted("\n</parameter>\n")
        values = choices_of(schema)
        if values is not None:
            return [f"{head} ({' | '.join(map(quoted, values))}) {tail}"]
        if accepts_text(schema):
            others = (_FUNCTION_END, _PARAMETER, CLOSE)
            text = text_then(f"{item}_v", Terms({}), _PARAMETER_END, *others, before="\n", after="\n", schema=schema)
            return [f"{head} {item}_v", *text]
        return [f"{head} {item}_v {tail}", f"{item}_v: {json_rule(schema)}"]

    return "\n".join(in_order(own, properties(tools, name), '""', rules))
