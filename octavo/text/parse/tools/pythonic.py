"""``[f(a=1, b="x"), g()]``: Llama 3.2 and 4, OLMo 3, ToolACE. Python's literals, no positional arguments.

The list counts at the start of a line or behind ``<|python_start|>``, and only if its first call is one of a tool that
the request has: a list in an answer is an answer.
"""

import re
from collections.abc import Collection

from octavo.text.parse import python_reader
from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.lark import (
    Frame,
    Terms,
    accepts_text,
    choices_of,
    frame_calls,
    json_rule,
    listed,
    properties,
    quoted,
)
from octavo.text.parse.out import Out
from octavo.text.parse.source import Marks, Source
from octavo.text.parse.values import quote

START, END = "<|python_start|>", "<|python_end|>"
_BEGIN = Marks((START, "\n["))
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
        source.keep()
        yield from source.space()
        if (yield from source.peek()) == "[":
            yield from self._list(source, out, tools)
        else:
            out.text(source.kept())
        while True:
            mark = yield from source.until(_BEGIN, out.text)
            if not mark:
                return
            if mark == START:
                source.keep(mark)
                yield from source.space()
            else:
                out.text("\n")
                source.at -= 1  # the bracket was taken a moment ago and is still there
                source.keep()
            yield from self._list(source, out, tools)

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
    out.arguments("{")
    first = True
    while True:
        yield from source.space()
        if (yield from source.skip(")")):
            out.arguments("}")
            return True
        key = yield from source.run(_NAME, 256)
        yield from source.space()
        if not key or not (yield from source.skip("=")):
            out.arguments(key)
            return False
        out.arguments(("" if first else ", ") + quote(key) + ": ")
        first = False
        yield from source.space()
        if not (yield from python_reader.value(source, out.arguments)):
            return False
        yield from source.space()
        if not (yield from source.skip(",")) and (yield from source.peek()) != ")":
            return False


def _arguments_rules(tools: ToolSchemas, name: str, own: str) -> str:
    rules, items = [], []
    for number, (key, schema, required) in enumerate(properties(tools, name)):
        item = f"{own}_p{number}"
        kind = schema.get("type") if isinstance(schema, dict) else None
        values = choices_of(schema)
        if values is not None:
            rules.append(f"{item}: {quoted(key + '=')} ({' | '.join(quoted(quote(value)) for value in values)})")
        elif kind == "boolean":
            rules.append(f'{item}: {quoted(key + "=")} ("True" | "False")')
        elif accepts_text(schema) or kind != "null":
            rules += [f"{item}: {quoted(key + '=')} {item}_v", f"{item}_v: {json_rule(schema)}"]
        else:
            rules.append(f'{item}: {quoted(key + "=")} "None"')
        items.append((item, required))
    return "\n".join([*listed(own, items, '", "'), *rules])
