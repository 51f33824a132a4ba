"""DeepSeek: a section of calls, a separator between what a call is and its arguments."""

from collections.abc import Collection

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import NAME, Outcome, arguments_of, is_name
from octavo.text.parse.lark import Terms, quoted
from octavo.text.parse.marked import SectionDialect, close
from octavo.text.parse.out import Out
from octavo.text.parse.source import Source

_FENCE = "```"


class DeepSeekV3(SectionDialect):
    """V3 and R1: the type before the separator, then the name, then arguments in a fenced JSON block."""

    begin, end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call, call_end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    separator = "<｜tool▁sep｜>"

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """Its marks and the fence."""
        return 50 if self.begin in template and "```json" in template else 0

    def read_call(self, source: Source, out: Out) -> Steps[bool]:
        yield from source.run(NAME, 64)  # the type, always "function"
        if not (yield from source.skip(self.separator)):
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
        yield from close(source, out, self.call_end)
        return True

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """A section of calls."""

        def call(name: str, rule: str) -> str:
            fenced = quoted(f"{name}\n{_FENCE}json\n")
            return f'"function" {terms.mark(self.separator)} {fenced} {rule} "\\n```"'

        return self.rules(tools, choice, terms, call, between='"\\n"')


class DeepSeekV31(DeepSeekV3):
    """V3.1: the name before the separator, bare JSON arguments behind it."""

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """Its marks without the fence of its elder."""
        return 40 if self.begin in template else 0

    def read_call(self, source: Source, out: Out) -> Steps[bool]:
        name = yield from source.run(NAME, 256)
        return (yield from self.read_arguments(source, out, name))

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """A section of calls."""

        def call(name: str, rule: str) -> str:
            return f"{quoted(name)} {terms.mark(self.separator)} {rule}"

        return self.rules(tools, choice, terms, call)
