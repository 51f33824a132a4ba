"""DeepSeek V3.1: calls between marks, a name before the separator, bare JSON arguments behind it."""

from collections.abc import Collection

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import NAME, Outcome, arguments_of, is_name
from octavo.text.parse.lark import Frame, Terms, frame_calls, quoted
from octavo.text.parse.marked import close
from octavo.text.parse.out import Out
from octavo.text.parse.sections import Section
from octavo.text.parse.source import Source
from octavo.text.parse.tools.deepseek_v3 import BEGIN, CALL, CALL_END, END, SEPARATOR

_SECTION = Section(BEGIN, CALL, END)


class DeepSeekV31:
    """The dialect."""

    marks: tuple[str, ...] = (BEGIN, END, CALL, CALL_END, SEPARATOR)
    triggers: tuple[str, ...] = (BEGIN,)

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """Its marks without the fence of its elder."""
        return 40 if BEGIN in template else 0

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:  # noqa: ARG002
        """Text, and a section of calls."""
        yield from _SECTION.read(source, out, self._call)

    def _call(self, source: Source, out: Out) -> Steps[bool]:
        name = yield from source.run(NAME, 256)
        if not is_name(name) or not (yield from source.skip(SEPARATOR)):
            return False
        yield from source.space()
        if (yield from arguments_of(source, out, name)) is Outcome.NONE:
            return False
        yield from close(source, out, CALL_END)
        return True

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """A section of calls."""

        def call(name: str, rule: str) -> str:
            return f"{quoted(name)} {terms.mark(SEPARATOR)} {rule}"

        frame = Frame(terms.mark(BEGIN), terms.mark(CALL), terms.mark(CALL_END), terms.mark(CALL), terms.mark(END))
        return frame_calls(tools, choice, frame, call)
