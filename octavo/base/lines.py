"""Lines of tokens that grow by one token a step, written down several steps at once.

To touch hundreds of lists costs more than what is written into them: while the same lines go on, their tokens are kept
as they come, a list a step.
"""

from collections import deque

SPAN = 16  # steps that are kept at most, so that no step has much to write


class Lines:
    """Whoever reads a line settles first."""

    __slots__ = ("_lines", "_told")

    def __init__(self) -> None:
        self._lines: list[list[int]] = []
        self._told: list[list[int]] = []

    def add(self, lines: list[list[int]], tokens: list[int]) -> None:
        """One more token for each of these lines, which are those of the step before if they are the very same list.
        Neither list may change afterwards."""
        if lines is not self._lines or len(self._told) == SPAN:
            self.settle()
            self._lines = lines
        self._told.append(tokens)

    def settle(self) -> None:
        """Write down all that was added."""
        told = self._told
        if len(told) == 1:
            deque(map(list.append, self._lines, told[0]), maxlen=0)
        elif told:
            deque(map(list.extend, self._lines, zip(*told)), maxlen=0)
        told.clear()
