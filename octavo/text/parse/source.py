"""Text that comes in pieces, read by generators: what needs more text yields.

No operation looks at a character twice more than a mark's length, and none keeps more than that back, so reading is
linear however the text is cut. Patterns used here are classes of characters and fixed strings: nothing backtracks.
"""

import re
from collections.abc import Callable, Sequence

from octavo.text.parse.base import Steps

Sink = Callable[[str], object]
_SPACE = re.compile(r"\s*+")


class Marks:
    """Fixed strings to look for. None may begin another."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._found = re.compile("|".join(re.escape(mark) for mark in marks)).search
        self._beginnings = frozenset(mark[:length] for mark in marks for length in range(1, len(mark)))
        self._any = tuple(self._beginnings)
        self._longest = max(map(len, marks)) - 1

    def find(self, text: str, start: int) -> tuple[int, int] | None:
        """Where the first mark from `start` on stands."""
        found = self._found(text, start)
        return found.span() if found else None

    def safe(self, text: str, start: int) -> int:
        """Up to where `text`, which holds no mark, cannot be part of one."""
        if not text.endswith(self._any, start):
            return len(text)
        for length in range(min(self._longest, len(text) - start), 0, -1):
            if text[-length:] in self._beginnings:
                return len(text) - length
        return len(text)


class Source:
    """The text still to be read. `keep` and `kept`: all that was taken since, to give it back if it was no call."""

    __slots__ = ("_kept", "at", "ended", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self._kept: list[str] | None = None

    def push(self, text: str) -> None:
        """More text."""
        self.text = self.text[self.at :] + text if self.at < len(self.text) else text
        self.at = 0

    def take(self, end: int) -> str:
        """The text up to `end`, now read."""
        text = self.text[self.at : end]
        self.at = end
        if self._kept is not None:
            self._kept.append(text)
        return text

    def keep(self, first: str = "") -> None:
        """Remember what is taken from here on, behind `first`."""
        self._kept = [first]

    def kept(self) -> str:
        """What was remembered; nothing more is."""
        kept, self._kept = self._kept or [], None
        return "".join(kept)

    def until(self, marks: Marks, sink: Sink) -> Steps[str]:
        """Gives `sink` the text before the next mark; returns the mark, taken, or "" at the end."""
        while True:
            found = marks.find(self.text, self.at)
            if found is not None:
                if found[0] > self.at:
                    sink(self.take(found[0]))
                return self.take(found[1])
            end = len(self.text) if self.ended else marks.safe(self.text, self.at)
            if end > self.at:
                sink(self.take(end))
            if self.ended:
                return ""
            yield

    def peek(self) -> Steps[str]:
        """The next character, not taken; "" at the end."""
        while self.at >= len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def skip(self, literal: str) -> Steps[bool]:
        """Takes `literal` if it comes next; else nothing."""
        while True:
            if self.text.startswith(literal, self.at):
                self.take(self.at + len(literal))
                return True
            left = len(self.text) - self.at
            if self.ended or left >= len(literal) or not literal.startswith(self.text[self.at :]):
                return False
            yield

    def run(self, pattern: "re.Pattern[str]", limit: int) -> Steps[str]:
        """Takes characters as long as `pattern`, one possessive class, matches; stops behind `limit` of them."""
        parts: list[str] = []
        size = 0
        while True:
            found = pattern.match(self.text, self.at)
            if found and found.end() > self.at:
                parts.append(self.take(min(found.end(), self.at + limit - size)))
                size += len(parts[-1])
            if size >= limit or self.at < len(self.text) or self.ended:
                return "".join(parts)
            yield

    def separated(self, closer: str, entry: Callable[[str], Steps[bool]]) -> Steps[bool]:
        """``entry, entry`` up to `closer`, which is taken and may stand behind a comma; False at what is none of that.

        `entry` is given what goes before it in JSON: nothing, or a comma.
        """
        lead = ""
        while True:
            yield from self.space()
            if (yield from self.skip(closer)):
                return True
            if not (yield from entry(lead)):
                return False
            lead = ", "
            yield from self.space()
            if not (yield from self.skip(",")) and (yield from self.peek()) != closer:
                return False

    def space(self) -> Steps[str]:
        """Takes whitespace."""
        return (yield from self.run(_SPACE, 1 << 30))
