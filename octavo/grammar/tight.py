"""Where there is room for a known way to the end and for nothing longer: what is plain to see about what may come."""

from collections.abc import Sequence

from octavo.grammar.base import Words
from octavo.grammar.growth import SPACE, is_outside, is_value
from octavo.grammar.vocabulary import VocabularyTable


def tighten(row: Words, vocabulary: VocabularyTable, place: int, token: int) -> None:
    """Take out of a mask what cannot be part of a JSON text as short as the one that goes on with `token`: blanks
    between values, and in a string that it closes whatever has no quote. `place`: see grammar/growth.py."""
    text = vocabulary.tokens[token]
    if is_value(place) and text.startswith(b'"'):
        row &= vocabulary.quotes
    elif is_outside(place) and text.strip(SPACE):
        row &= ~vocabulary.blanks


def rest_behind(vocabulary: VocabularyTable, way: Sequence[int], token: int) -> list[int] | None:
    """What is left of the way's text behind a token that begins it; None: the token begins another text."""
    text, first = vocabulary.tokens[token], vocabulary.tokens[way[0]]
    if not text or not (first.startswith(text) or text.startswith(first)):
        return None
    whole = vocabulary.text(way)
    return vocabulary.greedy(whole[len(text) :]) if whole.startswith(text) else None
