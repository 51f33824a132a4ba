"""What dialects with a section of calls share: ``SECTION call call END``, each call behind a mark of its own."""

from octavo.text.parse.base import Steps
from octavo.text.parse.marked import ReadCall, close
from octavo.text.parse.out import Out
from octavo.text.parse.source import Marks, Source


class Section:
    """The marks. The section's own may be missing; `end` may be missing too."""

    def __init__(self, begin: str, call: str, end: str) -> None:
        self.begin = begin
        self.call = call
        self.end = end
        self._marks = Marks((begin, call))

    def read(self, source: Source, out: Out, read: ReadCall) -> Steps[None]:
        """Text, and calls; what `read` refuses is given back, marks included."""
        while True:
            mark = yield from source.until(self._marks, out.text)
            if not mark:
                return
            source.keep(mark)
            if mark == self.begin:
                yield from source.space()
                if not (yield from source.skip(self.call)):
                    out.text(source.kept())
                    continue
            yield from self._calls(source, out, read)

    def _calls(self, source: Source, out: Out, read: ReadCall) -> Steps[None]:
        while True:
            if not (yield from read(source, out)):
                out.text(source.kept())
                return
            source.keep()
            yield from source.space()
            if (yield from source.skip(self.call)):
                continue
            out.text(source.kept())
            yield from close(source, out, self.end)
            return
