"""What dialects with marks share: text up to a mark, then a call or the mark's text given back."""

import re
from collections.abc import Callable

from octavo.text.parse.base import Steps
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
