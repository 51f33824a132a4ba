"""DeepSeek V3 and R1: calls between marks, type and name before a separator, arguments in a fenced JSON block."""

from collections.abc import Collection

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import NAME, Outcome, arguments_of, is_name
from octavo.text.parse.lark import Frame, Terms, frame_calls, quoted
from octavo.text.parse.marked import close
from octavo.text.parse.out import Out
from octavo.text.parse.sections import Section
from octavo.text.parse.source import Source

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
_FENCE = "```"
_SECTION = Section(BEGIN, CALL, END)


class DeepSeekV3:
    """The dialect."""

    marks: tuple[str, ...] = (BEGIN, END, CALL, CALL_END, SEPARATOR)
    triggers: tuple[str, ...] = (BEGIN,)

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """Its marks and the fence."""
        return 50 if BEGIN in template and "```json" in template else 0

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:  # noqa: ARG002
        """Text, and a section of calls."""
        yield from _SECTION.read(source, out, self._call)

    def _call(self, source: Source, out: Out) -> Steps[bool]:
        yield from source.run(NAME, 64)  # the type, always "function"
        if not (yield from source.skip(SEPARATOR)):
            return False
        name = yield from source.run(NAME, 256)
        yield from source.space()
        if not is_name(name):
            return False
        fenced = yield from source.skip(_FENCE)
        if fenced:
            yield from source.skip("json")
            yield from source.space()
        if (yield from arguments_of(source, out, name)) is Outcome.NONE:
            return False
        if fenced:
            yield from close(source, out, _FENCE)
        yield from close(source, out, CALL_END)
        return True

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """A section of calls."""

        def call(name: str, rule: str) -> str:
            return f'"function" {terms.mark(SEPARATOR)} {quoted(name + chr(10) + "```json" + chr(10))} {rule} "\\n```"'

        frame = Frame(
            terms.mark(BEGIN), terms.mark(CALL), terms.mark(CALL_END), f'"\\n" {terms.mark(CALL)}', terms.mark(END)
        )
        return frame_calls(tools, choice, frame, call)
