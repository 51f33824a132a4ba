"""Stop strings in a stream: found as soon as they are complete, never shown in part.

Each stop string is matched by the Knuth-Morris-Pratt automaton (1977), a character at a time, so the answer does
not depend on how the text is cut into tokens. Among matches the one that ends first wins; of several that end at
the same character, the one that begins first.
"""

from collections.abc import Sequence


class StopMatch:
    """Where a stop string was found: `text` is what comes before it (and the string, if included)."""

    __slots__ = ("stop", "text")

    def __init__(self, text: str, stop: str) -> None:
        self.text = text
        self.stop = stop


class StopFinder:
    """Finds stop strings in one stream of text.

    `feed` gives the text that no stop string can reach back into; after a match `match` is set and the stream ends.
    """

    __slots__ = ("_fails", "_firsts", "_held", "_include", "_states", "_stops", "match")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        # Longest first: of two that end at one character, the longer began first.
        self._stops = sorted(dict.fromkeys(stops), key=len, reverse=True)
        self._fails = [_failure(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._firsts = {stop[0] for stop in self._stops}
        self._held = ""
        self._include = include
        self.match: StopMatch | None = None

    def feed(self, text: str, *, armed: bool = True) -> str:
        """The text that may be shown. Not `armed`: matches that end in `text` do not count."""
        if not self._held and self._firsts.isdisjoint(text):
            return text
        states, whole = self._states, self._held + text
        for index, char in enumerate(text):
            for number, stop in enumerate(self._stops):
                state, fail = states[number], self._fails[number]
                while state and (state == len(stop) or stop[state] != char):
                    state = fail[state]
                if stop[state] == char:
                    state += 1
                states[number] = state
                if state == len(stop) and armed:
                    return self._found(whole[: len(self._held) + index + 1], stop)
        longest = max(
            fail[state] if state == len(stop) else state for stop, state, fail in zip(self._stops, states, self._fails)
        )
        cut = len(whole) - longest
        self._held = whole[cut:]
        return whole[:cut]

    def flush(self) -> str:
        """What is still held, at the end of the stream."""
        held, self._held = self._held, ""
        return held

    def _found(self, text: str, stop: str) -> str:
        self._held = ""
        shown = text if self._include else text[: len(text) - len(stop)]
        self.match = StopMatch(shown, stop)
        return shown


def _failure(stop: str) -> list[int]:
    """For each matched length, the longest shorter prefix of `stop` that is a suffix of the match."""
    fail = [0] * (len(stop) + 1)
    state = 0
    for length in range(1, len(stop)):
        while state and stop[state] != stop[length]:
            state = fail[state]
        if stop[state] == stop[length]:
            state += 1
        fail[length + 1] = state
    return fail
