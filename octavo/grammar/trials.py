"""Where there is room for a known way to the end and for nothing longer: if few tokens may come, each is tried before
one is drawn, so that none is drawn for nothing.

What came of a trial is kept for the token that is drawn: it has not to be looked for again.
"""

from collections.abc import Iterable

import numpy as np

from octavo.grammar.base import Matcher, Words
from octavo.grammar.closing import Closer
from octavo.grammar.rests import tokens_of
from octavo.grammar.tight import rest_behind
from octavo.grammar.vocabulary import VocabularyTable, without

FEW = 6  # tokens of a mask; to try one takes 20 to 200 us, and masks of more of them are seldom tight

Behind = tuple[list[int], Matcher | None]
"""A way to the end from behind a token, and the matcher there if one was moved."""


class Trials:
    """Of tokens at one place of a text; the first of the `way` is none of them. `last`: see Closer.follow."""

    def __init__(
        self, matcher: Matcher, closer: Closer, vocabulary: VocabularyTable, way: list[int], last: list[int]
    ) -> None:
        self._matcher = matcher
        self._closer = closer
        self._vocabulary = vocabulary
        self._way = way
        self._last = last
        self._fitting: dict[int, Behind] = {}
        self._vain: list[int] = []
        self._short: dict[bytes, int] = {}  # texts, and the most tokens behind them that are known to be too few

    def know(self, before: "Trials", token: int) -> None:
        """Those at the place before, from which the token led here."""
        said = self._vocabulary.tokens[token]
        self._short = {text[len(said) :]: room for text, room in before._short.items() if text.startswith(said)}

    def run(self, tokens: Iterable[int]) -> None:
        """Try these."""
        for token in tokens:
            behind = self._try(token)
            if behind is None:
                self._vain.append(token)
            else:
                self._fitting[token] = behind

    def clear(self, row: Words) -> None:
        """Take those that did not fit out of the mask."""
        words = row.data
        for token in self._vain:
            words[token >> 5] &= without(token)

    def behind(self, token: int) -> Behind | None:
        """What came of the trial of one that fits; None: there was none."""
        return self._fitting.get(token)

    def _try(self, token: int) -> Behind | None:
        """As a guide judges a token that was drawn."""
        matcher, room = self._matcher, len(self._way) - 1
        known, rest = rest_behind(matcher, self._vocabulary, self._way, token)
        if known:
            return None if rest is None or len(rest) > room else (rest, None)
        at = matcher.copy()
        if not at.accept(token):
            return None
        if at.is_accepting:
            return [], at
        forced = at.forced()
        text, behind = self._vocabulary.tokens[token] + forced, room - len(self._vocabulary.greedy(forced) or ())
        if behind <= self._short.get(text, -1):
            return None
        found = self._closer.follow(at, self._last, room)
        if found is not None:
            return self._closer.repacked(at, found), at
        self._short[text] = behind
        return None


def others(row: Words, token: int) -> int:
    """In how many words of a mask there are other tokens than this one. Most often there is none."""
    words, place = row.data, token >> 5
    kept = words[place]
    words[place] = kept & without(token)
    count = int(np.count_nonzero(row))
    words[place] = kept
    return count


def few(row: Words) -> list[int]:
    """The tokens of a mask, if they are few."""
    tokens = tokens_of(row, FEW)
    return [] if tokens is None else tokens.tolist()
