"""Rests of a known way to the end: where one text of a form ends, another one that has come as far ends alike."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from octavo.grammar.base import Words
from octavo.grammar.vocabulary import VocabularyTable


def allowed(row: Words, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of `tokens` a mask lets come."""
    found: npt.NDArray[np.bool_] = ((row[tokens >> 5] >> (tokens & 31)) & 1) == 1
    return found


def tokens_of(row: Words, most: int) -> npt.NDArray[np.int64] | None:
    """The tokens that a mask lets come; None if they are more than `most`."""
    words = np.flatnonzero(row)
    bits = np.unpackbits(row[words].view(np.uint8), bitorder="little")
    if np.count_nonzero(bits) > most:
        return None
    places = np.flatnonzero(bits)
    found: npt.NDArray[np.int64] = words[places >> 5] * 32 + (places & 31)
    return found


def whole_rests(row: Words, way: Sequence[int], limit: int) -> Iterator[Sequence[int]]:
    """Rests of at most `limit` tokens of the way whose first the mask lets come, the shortest first."""
    words = row.data  # one by one: most often one of the first few does
    for at in range(len(way) - 1, max(0, len(way) - limit) - 1, -1):
        token = way[at]
        if words[token >> 5] >> (token & 31) & 1:
            yield way[at:]


Rest = tuple[int, list[int], int]
"""Tokens in all; those of what is left of a token that it begins within; the place in the way behind that."""


def rests_of(vocabulary: VocabularyTable, way: Sequence[int]) -> list[Rest]:
    """All rests of a way, those too that begin within one of its tokens: a text may come in other tokens."""
    found: list[Rest] = []
    for at, token in enumerate(way):
        text = vocabulary.tokens[token]
        found.append((len(way) - at, [token], at + 1))
        for cut in range(1, len(text)):
            lead = vocabulary.greedy(text[cut:])
            if lead:
                found.append((len(lead) + len(way) - at - 1, lead, at + 1))
    return sorted(found, key=lambda rest: rest[0])


class Rests:
    """Those of one way, to be looked up by a mask."""

    def __init__(self, way: Sequence[int], found: Sequence[Rest]) -> None:
        self._way = list(way)
        self._found = found
        self._lengths = [length for length, _, _ in found]
        first = np.array([lead[0] for _, lead, _ in found], dtype=np.int64)
        self._words, self._bits = first >> 5, (first & 31).astype(np.int32)

    def offered(self, row: Words, limit: int) -> Iterator[list[int]]:
        """Those of at most `limit` tokens whose first the mask lets come, the shortest first."""
        count = bisect_right(self._lengths, limit)
        may = row[self._words[:count]] >> self._bits[:count] & 1
        for index in may.nonzero()[0].tolist():
            _, lead, after = self._found[index]
            yield lead + self._way[after:]
