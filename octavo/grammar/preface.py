"""What comes before a constraint begins: any text, up to the first of its markers."""

from collections.abc import Sequence

from octavo.grammar.vocabulary import VocabularyTable


class Preface:
    """One request's. A marker is a special token, or plain characters however they are cut in tokens."""

    def __init__(self, vocabulary: VocabularyTable, markers: Sequence[str]) -> None:
        self._vocabulary = vocabulary
        self._markers = [text.encode() for text in markers]
        self._ids = {vocabulary.by_name.get(marker, -1) for marker in self._markers} - {-1}
        self.tail = b""  # what may be the beginning of a marker

    def read(self, token: int) -> bytes | None:
        """Go on by a token. If a marker ends in it, what stands behind the marker; else None."""
        if token in self._ids:
            return b""
        known = self.tail + self._vocabulary.tokens[token]
        for marker in self._markers:
            place = known.find(marker)
            if place >= 0 and place + len(marker) > len(self.tail):
                return known[place + len(marker) :]
        longest = max(map(len, self._markers))
        self.tail = known[-(longest - 1) :] if longest > 1 else b""
        return None

    def marker(self) -> list[int] | None:
        """Tokens of the first one; None if there are none for it."""
        known = self._vocabulary.by_name.get(self._markers[0])
        return [known] if known is not None else self._vocabulary.greedy(self._markers[0])
