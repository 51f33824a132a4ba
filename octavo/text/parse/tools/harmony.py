"""Harmony, the format of gpt-oss: messages in channels. It tells thoughts, text and calls in one.

``<|channel|>analysis<|message|>...<|end|>`` are thoughts, ``commentary to=functions.name`` is a call, ``final`` and
commentary to nobody are text. The prompt ends behind ``<|start|>assistant``. Source: OpenAI's harmony guide.
"""

import re
from collections.abc import Callable, Collection

from octavo.text.parse import json_reader
from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import is_name
from octavo.text.parse.lark import Frame, Terms, frame_calls, quoted, text_then
from octavo.text.parse.out import Out
from octavo.text.parse.parser import State
from octavo.text.parse.source import Marks, Source

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
RECIPIENT = " to=functions."
_HEADER_ENDS = Marks((MESSAGE, END, RETURN, CALL))
_BODY_ENDS = Marks((END, RETURN, CALL, START, CHANNEL))
_TO = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([a-z]+)")
_MAX_HEADER = 1024


class Harmony:
    """The dialect."""

    marks: tuple[str, ...] = (START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALL)
    triggers: tuple[str, ...] = (RECIPIENT,)

    def recognise(self, template: str, specials: Collection[str]) -> int:
        """Its channels."""
        return 60 if CHANNEL in template or {CHANNEL, MESSAGE, CONSTRAIN} <= set(specials) else 0

    def read_message(self, source: Source, out: Out, tools: ToolSchemas, state: State) -> Steps[None]:
        """Message by message to the end."""
        while (yield from source.peek()):
            header = yield from self._header(source)
            if header is None:
                yield from self._body(source, out.text)
                continue
            if not header.endswith(MESSAGE):  # broken off, or ended without a text
                continue
            channel = _CHANNEL.search(header)
            recipient = _TO.search(header)
            name = recipient.group(1).removeprefix("functions.") if recipient else ""
            called = recipient is not None and (recipient.group(1).startswith("functions.") or name in tools)
            if called and is_name(name):
                yield from self._call(source, out, name)
            elif channel is not None and channel.group(1) == "analysis":
                state.thinking = True
                yield from self._body(source, out.reasoning)
                state.thinking = False
                out.end_thoughts()
            else:
                yield from self._body(source, out.text)

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:
        """The same for a caller that keeps no state."""
        yield from self.read_message(source, out, tools, State())

    def _header(self, source: Source) -> Steps[str | None]:
        """What stands before a message's text; None where no header begins."""
        for beginning in (START, CHANNEL, " to=", "to="):
            if (yield from source.skip(beginning)):
                parts = [beginning]
                mark = yield from source.until(_HEADER_ENDS, parts.append)
                return "".join(parts)[:_MAX_HEADER] + mark
        return None

    def _body(self, source: Source, sink: Callable[[str], None]) -> Steps[None]:
        mark = yield from source.until(_BODY_ENDS, sink)
        if mark in (START, CHANNEL):
            source.at -= len(mark)  # the next header begins with it

    def _call(self, source: Source, out: Out, name: str) -> Steps[None]:
        source.keep()
        yield from source.space()
        if (yield from source.peek()) == "{":
            source.kept()
            out.start(name)
            yield from json_reader.value(source, out.arguments)
            out.end()
            yield from source.space()
            yield from self._body(source, out.text)
            return
        source.kept()
        parts: list[str] = []
        yield from self._body(source, parts.append)
        text = "".join(parts)
        if text.strip():
            out.text(text)
            return
        out.start(name)
        out.arguments("{}")
        out.end()

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """Thoughts as many as the model likes, then one call: a harmony message has one recipient."""

        def call(name: str, rule: str) -> str:
            return f'{quoted(name)} " " {terms.mark(CONSTRAIN)} "json" {terms.mark(MESSAGE)} {rule}'

        first = f'thoughts {terms.mark(CHANNEL)} "commentary{RECIPIENT}"'
        one = Choice(choice.mode, choice.names, parallel=False, strict=choice.strict)
        rules = frame_calls(tools, one, Frame(first), call)
        return rules + self.thought_rules(terms)

    def thought_rules(self, terms: Terms) -> str:
        """The rule `thoughts`: messages of analysis, each with what opens the next one."""
        head, again = f'{terms.mark(CHANNEL)} "analysis" {terms.mark(MESSAGE)}', f'{terms.mark(START)} "assistant"'
        if terms.budget is None:
            return "\n".join([f"thoughts: ({head} thought {again})*", *text_then("thought", terms, END), ""])
        thought = f"{terms.tokens_before(END, terms.budget)} {terms.mark(END)}"
        return f"thoughts: ({head} thought {again})?\nthought: {thought}\n"

    def spoken_rules(self, terms: Terms, *, calls: bool) -> str:
        """The rule `spoken`: what may follow `thoughts`. `calls`: messages to functions too, of any form."""
        recipient = f'("{RECIPIENT.rstrip(".")}" /[^<]+/ ({terms.mark(CONSTRAIN)} /[a-z]+/)?)?' if calls else ""
        one = f'{terms.mark(CHANNEL)} ("final" | "commentary") {recipient} {terms.mark(MESSAGE)} /(.|\\n)*/'
        return f'spoken: one_said ({terms.mark(END)} {terms.mark(START)} "assistant" one_said)*\none_said: {one}\n'

    def before_answer(self, terms: Terms) -> str:
        """What stands before an answer, as a right-hand side over `thought_rules`."""
        return f'thoughts {terms.mark(CHANNEL)} "final" {terms.mark(MESSAGE)}'
