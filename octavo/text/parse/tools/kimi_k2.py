"""Kimi K2: a section of calls, each with the id ``functions.name:0``, which the tool's answer must name again."""

from collections.abc import Collection

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import NAME
from octavo.text.parse.lark import Terms, quoted
from octavo.text.parse.marked import SectionDialect
from octavo.text.parse.out import Out
from octavo.text.parse.source import Source

BEGIN = "<|tool_calls_section_begin|>"


class KimiK2(SectionDialect):
    """The dialect."""

    begin, end = BEGIN, "<|tool_calls_section_end|>"
    call, call_end = "<|tool_call_begin|>", "<|tool_call_end|>"
    separator = "<|tool_call_argument_begin|>"

    def recognise(self, template: str, specials: Collection[str]) -> int:
        """Its marks."""
        return 50 if BEGIN in template or BEGIN in specials else 0

    def read_call(self, source: Source, out: Out) -> Steps[bool]:
        yield from source.space()
        given = yield from source.run(NAME, 256)
        yield from source.space()
        name, _, number = given.removeprefix("functions.").rpartition(":")
        if not name or not number.isdecimal():
            name = given.removeprefix("functions.")
        return (yield from self.read_arguments(source, out, name, given))

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """A section of calls, their numbers left to the model."""

        def call(name: str, rule: str) -> str:
            return f"{quoted(f'functions.{name}:')} /[0-9]{{1,3}}/ {terms.mark(self.separator)} {rule}"

        return self.rules(tools, choice, terms, call)
