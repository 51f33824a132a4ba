"""Where there is room for a known way to the end and for nothing longer: what is plain to see about what may come."""

from collections.abc import Sequence

from octavo.grammar.base import Matcher, Words
from octavo.grammar.growth import SPACE, is_outside, is_value
from octavo.grammar.vocabulary import VocabularyTable, without

LEADS = (b"", b" ", b"\n", b"  ", b"\t")  # blanks that stand before a text in one token


def tighten(row: Words, vocabulary: VocabularyTable, place: int, way: Sequence[int]) -> None:
    """Take out of a mask what cannot be part of a JSON text as short as `way`, which is the rest of one. `place`: see
    grammar/growth.py.

    That is blanks between values, more digits where the way sets a comma, what closes nothing where the way does, in a
    string that it closes whatever has no quote, and tokens that bring the text less far than the way's first.
    """
    text = vocabulary.tokens[way[0]]
    if is_outside(place) and text.strip(SPACE):
        row &= _kept(vocabulary, text)
        _clear(row, vocabulary, way, LEADS)
    elif is_value(place) and text.startswith(b'"'):
        row &= vocabulary.quotes
        if len(text) > 1 and not _fits(vocabulary, way, 1):
            row &= ~vocabulary.bare_quotes
        _clear(row, vocabulary, way, LEADS[:1])
    elif not is_outside(place) and b"\\" not in text:
        _clear(row, vocabulary, way, LEADS[:1])


def _kept(vocabulary: VocabularyTable, text: bytes) -> Words:
    """Outside of strings, what may come where the way goes on with `text`."""
    if text[:1] in (b"]", b"}"):
        return vocabulary.closers
    return vocabulary.enders if text[:1] == b"," else ~vocabulary.blanks


def _clear(row: Words, vocabulary: VocabularyTable, way: Sequence[int], leads: Sequence[bytes]) -> None:
    """Take out tokens that are a start of the way's first, behind one of the leads, where there is no room for what the
    rest of the text takes then."""
    words, known, text = row.data, vocabulary.by_bytes, vocabulary.tokens[way[0]]
    for cut in range(1, len(text)):
        found = [token for lead in leads if (token := known.get(lead + text[:cut])) is not None]
        found = [token for token in found if words[token >> 5] >> (token & 31) & 1]
        if found and not _fits(vocabulary, way, cut):
            for token in found:
                words[token >> 5] &= without(token)


def _fits(vocabulary: VocabularyTable, way: Sequence[int], cut: int) -> bool:
    """Whether what is left of the way's text behind `cut` bytes takes no more tokens than the way behind its first."""
    if not _may_merge(vocabulary, way, cut):
        return False
    rest = vocabulary.greedy(vocabulary.text(way)[cut:])
    return rest is not None and len(rest) < len(way)


def _may_merge(vocabulary: VocabularyTable, way: Sequence[int], cut: int) -> bool:
    """Whether what is left of the way's first token behind `cut` bytes goes on into the next in one token: else the
    text cannot be as short, cut otherwise."""
    left = vocabulary.tokens[way[0]][cut:]
    found = vocabulary.greedy(left + vocabulary.text(way[1:2]))
    return found is None or len(vocabulary.tokens[found[0]]) > len(left)


def rest_behind(
    matcher: Matcher, vocabulary: VocabularyTable, way: Sequence[int], token: int
) -> tuple[bool, list[int] | None]:
    """Whether a token goes some of the way, and what is left of the way to make the text whole behind it, if it can.

    It may stand in place of the way's first, begin or end with a start of the way's text, or go another way.
    """
    rest = list(way[1:])
    if matcher.closes([token, *rest]):
        return True, rest
    text, first = vocabulary.tokens[token], vocabulary.tokens[way[0]]
    begins = text != b"" and (first.startswith(text) or text.startswith(first))
    if not begins and text[-1:] != first[:1]:
        return False, None
    whole = vocabulary.text(way)
    if begins and not whole.startswith(text):
        return False, None
    found = vocabulary.greedy(whole[len(text) if begins else 1 :])
    if found is None:
        return False, None
    fits = matcher.closes([token, *found])
    return begins or fits, found if fits else None
