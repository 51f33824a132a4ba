"""``[f(a=1, b="x"), g()]``: Llama 3.2 and 4, OLMo 3, ToolACE. Python's literals, no positional arguments.

The list counts at the start of a line or behind ``<|python_start|>``, and only if its first call is one of a tool that
the request has: a list in an answer is an answer.
"""

import re
from collections.abc import Collection
from functools import partial
from typing import Any

from octavo.text.parse import python_reader
from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.lark import (
    Frame,
    Terms,
    choices_of,
    frame_calls,
    in_order,
    json_rule,
    properties,
    quoted,
)
from octavo.text.parse.marked import on_lines
from octavo.text.parse.out import Out
from octavo.text.parse.source import Source
from octavo.text.parse.values import quote

START, END = "<|python_start|>", "<|python_end|>"
_NAME = re.compile(r"[A-Za-z0-9_.-]++")


class Pythonic:
    """The dialect."""

    marks: tuple[str, ...] = (START, END)
    triggers: tuple[str, ...] = ()

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """Its form, as templates show it to the model."""
        return 35 if "[func_name1(params_name1=" in template or "func_name(param" in template else 0

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:
        """Lists at the start, on lines of their own, and behind the mark."""
        yield from on_lines(source, out, START, "[", partial(self._list, tools=tools))

    def _list(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:
        bracketed = yield from source.skip("[")
        while True:
            yield from source.space()
            name = yield from source.run(_NAME, 256)
            if name not in tools or not (yield from source.skip("(")):
                out.text(source.kept())
                return
            source.kept()
            out.start(name)
            sound = yield from _arguments(source, out)
            out.end()
            if not sound:
                return
            source.keep()
            yield from source.space()
            if bracketed and (yield from source.skip("]")):
                break
            if not (yield from source.skip(",")):
                out.text(source.kept())
                if not bracketed:
                    break
                return
        source.kept()
        yield from source.skip(END)

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:  # noqa: ARG002
        """A bare list; left to itself the model may write anything that does not begin with a bracket."""

        def call(name: str, rule: str) -> str:
            return f'{quoted(name + "(")} {rule} ")"'

        frame = Frame('"["', again='", "', after='"]"')
        rules = frame_calls(tools, choice, frame, call, _arguments_rules)
        if choice.mode == "auto":
            rules = rules.replace("message:", "calls:", 1) + 'message: calls | /[^\\[](.|\\n)*/ | ""\n'
        return rules


def _arguments(source: Source, out: Out) -> Steps[bool]:
    """``key=value, ...)``; False at what is none of that."""

    def argument(lead: str) -> Steps[bool]:
        key = yield from source.run(_NAME, 256)
        yield from source.space()
        if not key or not (yield from source.skip("=")):
            out.arguments(key)
            return False
        out.arguments(lead + quote(key) + ": ")
        yield from source.space()
        return (yield from python_reader.value(source, out.arguments))

    out.arguments("{")
    if not (yield from source.separated(")", argument)):
        return False
    out.arguments("}")
    return True


def _arguments_rules(tools: ToolSchemas, name: str, own: str) -> str:
    def rules(item: str, key: str, schema: Any) -> list[str]:
        head = quoted(key + "=")
        kind = schema.get("type") if isinstance(schema, dict) else None
        values = choices_of(schema)
        if values is not None:
            return [f"{item}: {head} ({' | '.join(quoted(quote(value)) for value in values)})"]
        if kind == "boolean":
            return [f'{item}: {head} ("True" | "False")']
        if kind == "null":
            return [f'{item}: {head} "None"']
        return [f"{item}: {head} {item}_v", f"{item}_v: {json_rule(schema)}"]

    return "\n".join(in_order(own, properties(tools, name), '", "', rules))
