"""``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen 2.5 and 3, Granite 4, and many more."""

from collections.abc import Collection

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import Envelope, Outcome, call_object
from octavo.text.parse.lark import Frame, Terms, json_calls
from octavo.text.parse.marked import close, marked
from octavo.text.parse.out import Out
from octavo.text.parse.source import Source

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes:
    """The dialect."""

    marks: tuple[str, ...] = (OPEN, CLOSE)
    triggers: tuple[str, ...] = (OPEN,)

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """Its mark, and no sign of another dialect that shares it."""
        return 20 if OPEN in template else 0

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:
        """Text, and calls between marks. Small models forget the marks: a message may begin with a bare call."""
        source.keep()
        yield from source.space()
        outcome = yield from call_object(source, out, Envelope(known=tools, needs_arguments=True))
        if outcome is Outcome.NONE:
            out.text(source.kept())
        source.kept()
        yield from marked(source, out, OPEN, self._call)

    def _call(self, source: Source, out: Out) -> Steps[bool]:
        yield from source.space()
        outcome = yield from call_object(source, out)
        if outcome is Outcome.NONE:
            return False
        yield from close(source, out, CLOSE)
        return True

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """``<tool_call>`` newline object newline ``</tool_call>``, one or several."""
        frame = Frame(terms.mark(OPEN), '"\\n"', f'"\\n" {terms.mark(CLOSE)}', f'"\\n" {terms.mark(OPEN)} "\\n"')
        return json_calls(tools, choice, frame)
