"""Kimi K2: a section of calls, each with the id ``functions.name:0``, which the tool's answer must name again."""

from collections.abc import Collection

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import NAME, Outcome, arguments_of, is_name
from octavo.text.parse.lark import Frame, Terms, frame_calls, quoted
from octavo.text.parse.marked import close
from octavo.text.parse.out import Out
from octavo.text.parse.sections import Section
from octavo.text.parse.source import Source

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
_SECTION = Section(BEGIN, CALL, END)


class KimiK2:
    """The dialect."""

    marks: tuple[str, ...] = (BEGIN, END, CALL, CALL_END, ARGUMENTS)
    triggers: tuple[str, ...] = (BEGIN,)

    def recognise(self, template: str, specials: Collection[str]) -> int:
        """Its marks."""
        return 50 if BEGIN in template or BEGIN in specials else 0

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:  # noqa: ARG002
        """Text, and a section of calls."""
        yield from _SECTION.read(source, out, self._call)

    def _call(self, source: Source, out: Out) -> Steps[bool]:
        yield from source.space()
        given = yield from source.run(NAME, 256)
        yield from source.space()
        name, _, number = given.removeprefix("functions.").rpartition(":")
        if not name or not number.isdecimal():
            name = given.removeprefix("functions.")
        if not is_name(name) or not (yield from source.skip(ARGUMENTS)):
            return False
        yield from source.space()
        if (yield from arguments_of(source, out, name, given)) is Outcome.NONE:
            return False
        yield from close(source, out, CALL_END)
        return True

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """A section of calls, their numbers left to the model."""

        def call(name: str, rule: str) -> str:
            return f"{quoted(f'functions.{name}:')} /[0-9]{{1,3}}/ {terms.mark(ARGUMENTS)} {rule}"

        frame = Frame(terms.mark(BEGIN), terms.mark(CALL), terms.mark(CALL_END), terms.mark(CALL), terms.mark(END))
        return frame_calls(tools, choice, frame, call)
