"""What dialects share: text up to where a call may begin, then a call, or what was taken for one given back."""

import re
from collections.abc import Callable

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import Outcome, arguments_of, call_list, call_object, is_name
from octavo.text.parse.lark import CallRule, Frame, Terms, frame_calls, json_calls
from octavo.text.parse.out import Out
from octavo.text.parse.source import Marks, Source

ReadCall = Callable[[Source, Out], Steps[bool]]
_SLACK = re.compile(r"[\s}\]]++")


def marked(source: Source, out: Out, opening: str, read: ReadCall) -> Steps[None]:
    """Text, and behind each `opening` what `read` makes of it; False gives back all it took, the mark included."""
    marks = Marks((opening,))
    while (yield from source.until(marks, out.text)):
        source.keep(opening)
        if (yield from read(source, out)):
            source.kept()
        else:
            out.text(source.kept())


def close(source: Source, out: Out, *closings: str) -> Steps[bool]:
    """Takes one of `closings`, behind whitespace and superfluous brackets. What else comes first stays text."""
    source.keep()
    yield from source.run(_SLACK, 64)
    for closing in closings:
        if (yield from source.skip(closing)):
            source.kept()
            return True
    slack = source.kept()
    if slack.strip():
        out.text(slack)
    return False


def on_lines(
    source: Source, out: Out, tag: str, opener: str, read: Callable[[Source, Out], Steps[None]]
) -> Steps[None]:
    """Text, and what `read` makes of calls that begin with `opener`: at the start of the message, of a line, and
    behind `tag`. What `read` finds to be none it gives back."""
    marks = Marks((tag, f"\n{opener}"))
    source.keep()
    yield from source.space()
    if (yield from source.peek()) == opener:
        yield from read(source, out)
    else:
        out.text(source.kept())
    while True:
        mark = yield from source.until(marks, out.text)
        if not mark:
            return
        if mark == tag:
            source.keep(mark)
            yield from source.space()
        else:
            out.text("\n")
            source.at -= 1  # the opener was taken a moment ago and is still there
            source.keep()
        yield from read(source, out)


class SectionDialect:
    """A section of calls, ``BEGIN call call END``, each between marks of its own. All but a call's first mark may be
    missing."""

    begin = end = call = call_end = separator = ""

    def __init__(self) -> None:
        self.marks: tuple[str, ...] = (self.begin, self.end, self.call, self.call_end, self.separator)
        self.triggers: tuple[str, ...] = (self.begin,)
        self._openings = Marks((self.begin, self.call))

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:  # noqa: ARG002
        """Text, and a section of calls; what `read_call` refuses is given back, marks included."""
        while True:
            mark = yield from source.until(self._openings, out.text)
            if not mark:
                return
            source.keep(mark)
            if mark == self.begin:
                yield from source.space()
                if not (yield from source.skip(self.call)):
                    out.text(source.kept())
                    continue
            yield from self._calls(source, out)

    def read_call(self, source: Source, out: Out) -> Steps[bool]:
        """One call behind its mark; False if it is none."""
        raise NotImplementedError

    def read_arguments(self, source: Source, out: Out, name: str, given: str = "") -> Steps[bool]:
        """What stands behind the name of a call: separator, arguments, last mark. `given`: its id, where it has one."""
        if not is_name(name) or not (yield from source.skip(self.separator)):
            return False
        yield from source.space()
        if (yield from arguments_of(source, out, name, given)) is Outcome.NONE:
            return False
        yield from close(source, out, self.call_end)
        return True

    def rules(self, tools: ToolSchemas, choice: Choice, terms: Terms, call: CallRule, between: str = "") -> str:
        """The section's grammar; `between` stands before the mark of each call but the first."""
        mark = terms.mark
        frame = Frame(
            mark(self.begin), mark(self.call), mark(self.call_end), f"{between} {mark(self.call)}", mark(self.end)
        )
        return frame_calls(tools, choice, frame, call)

    def _calls(self, source: Source, out: Out) -> Steps[None]:
        while True:
            if not (yield from self.read_call(source, out)):
                out.text(source.kept())
                return
            source.keep()
            yield from source.space()
            if (yield from source.skip(self.call)):
                continue
            out.text(source.kept())
            yield from close(source, out, self.end)
            return


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
