"""What dialects of a mark and a list of calls share."""

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import Outcome, call_list, call_object
from octavo.text.parse.lark import Frame, json_calls
from octavo.text.parse.marked import close
from octavo.text.parse.out import Out
from octavo.text.parse.source import Marks, Source


class ListDialect:
    """Reads ``OPEN [calls] CLOSE`` for each of `openings`; a mark's `closings` may be missing."""

    openings: tuple[str, ...] = ()
    closings: tuple[str, ...] = ()
    single = False  # an object alone, without the list, counts too

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:  # noqa: ARG002
        """Text, and lists of calls behind marks."""
        begin = Marks(self.openings)
        while True:
            mark = yield from source.until(begin, out.text)
            if not mark:
                return
            source.keep(mark)
            yield from source.space()
            if self.single and (yield from source.peek()) == "{":
                outcome = yield from call_object(source, out)
            else:
                outcome = yield from call_list(source, out)
            if outcome is Outcome.NONE:
                out.text(source.kept())
            elif outcome is Outcome.CALLED and self.closings:
                yield from close(source, out, *self.closings)

    def rules(self, tools: ToolSchemas, choice: Choice, first: str, last: str = "") -> str:
        """``first [object, object] last``."""
        after = f'"]" {last}'
        return json_calls(tools, choice, Frame(first, '"["', again='", "', after=after))
