"""How far each token may put the end of JSON text off: a table over all tokens, so that to book one is one look.

Brackets, commas and quotes outside of strings begin what must be finished. A text stands in one of six places: outside
of strings, in one, or in one behind a backslash; in each, the last sign outside of strings was one that a name may
follow, or not.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

START, PLACES = 0, 6
FAR = 1 << 20
QUOTE, BACKSLASH = ord('"'), ord("\\")
OPENING, CLOSING, NEXT, SPACE = b"{[", b"}]", b"{,", b" \n\r\t"
QUIET = 0b111
"""A move of at most this is the place behind the token, which begins and ends nothing. Any other has from the lowest
bits the place (3), strings that the token begins (8), brackets that it opens and commas that it sets (8), and by how
many brackets it goes deeper (13, less FLAT)."""
FLAT = 1 << 12
MOST = 255
STRINGS, MEMBERS, DEEPER = 3, 11, 19


def is_outside(place: int) -> bool:
    """Of strings."""
    return place >> 1 == 0


def is_value(place: int) -> bool:
    """Within a string that is no name, and not behind a backslash."""
    return place == 2


class Costs(NamedTuple):
    """Tokens by which a token of JSON uses up what is to spare: itself and how far it may put the end off."""

    turns: tuple[int, ...]  # by the place before it
    string: int  # more, for each string that it begins
    member: int  # and for each bracket that it opens and comma that it sets
    bracket: int  # the end is never further off than this for each open bracket and for the text as a whole
    rest: int  # and this once


def costs_of_json(turn: int, name: int, string: int, member: int, whole: int) -> Costs:
    """`turn` of any token, `name` of one within a name, by how many tokens it may put the end off; `whole`: tokens of
    the longest short instance of anything that a bracket encloses."""
    turns = tuple(1 + (name if place in (3, 5) else turn) for place in range(PLACES))
    return Costs(turns, string, member, whole, string + turn)


def costs_of_any(most: int) -> Costs:
    """Of a form of which nothing is known: any token may begin what takes `most` tokens to finish."""
    return Costs((1 + most,) * PLACES, 0, 0, 0, FAR)


def among(signs: bytes) -> npt.NDArray[np.bool_]:
    """By byte."""
    found = np.zeros(256, dtype=np.bool_)
    found[list(signs)] = True
    return found


_SPEAKS = among(b'"\\,[]{}')
_BEGINS = among(OPENING + b",")
_NAMES = among(NEXT)
_SPACE = among(SPACE)
_DEPTH = among(OPENING).astype(np.int64) - among(CLOSING)


def move_table(tokens: Sequence[bytes]) -> list["array[int]"]:
    """For each place, the moves of all tokens."""
    data = np.frombuffer(b"".join(tokens), dtype=np.uint8)
    ends = np.cumsum([len(text) for text in tokens])
    table = _quiet(count(~_SPACE[data], ends) > 0, np.diff(ends, prepend=0) > 0).astype(np.uint32)
    speaking = np.flatnonzero(count(_SPEAKS[data], ends))
    for place in range(PLACES):
        table[place, speaking] = walk(place, [tokens[token] for token in speaking.tolist()])
    return [array("I", row.tobytes()) for row in table]


def count(here: npt.NDArray[np.bool_], ends: Numbers) -> Numbers:
    """How many bytes of each token are `here`. `ends`: of the tokens in the bytes of all, one after the other."""
    total = np.concatenate([[0], np.cumsum(here)])
    counted: Numbers = np.diff(total[ends], prepend=0)
    return counted


def _quiet(signs: npt.NDArray[np.bool_], texts: npt.NDArray[np.bool_]) -> Numbers:
    """[PLACES, tokens]: places behind tokens that neither begin nor end anything. `signs`: whether one has any other
    byte than whitespace; `texts`: any byte at all."""
    same = np.arange(PLACES)[:, None] + np.zeros(len(signs), dtype=np.int64)
    same[1] -= signs  # what was said last outside of strings is no comma any more
    same[4:] -= 2 * texts  # one byte is behind the backslash, the rest in the string
    return same


def walk(place: int, texts: Sequence[bytes]) -> Numbers:
    """The move of each text from `place`."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    width = int(lengths.max(initial=1))
    signs = np.frombuffer(b"".join(text.ljust(width) for text in texts), dtype=np.uint8).reshape(-1, width)
    mode, named = np.full(len(texts), place >> 1), np.full(len(texts), place & 1)
    strings, members, deeper = np.zeros((3, len(texts)), dtype=np.int64)
    for at in range(width):
        here = np.flatnonzero(lengths > at)
        sign, before = signs[here, at], mode[here]
        quote, slash, outside = sign == QUOTE, sign == BACKSLASH, before == 0
        mode[here] = np.select(
            [before == 2, (before == 1) & slash, (before == 1) & quote, outside & quote], [1, 2, 0, 1], before
        )
        said = outside & ~quote & ~slash & ~_SPACE[sign]
        named[here] = np.where(said, _NAMES[sign], named[here])
        strings[here] += outside & quote
        members[here] += said & _BEGINS[sign]
        deeper[here] += np.where(said, _DEPTH[sign], 0)
    counts = (np.minimum(strings, MOST) << STRINGS) + (np.minimum(members, MOST) << MEMBERS)
    moves: Numbers = 2 * mode + named + counts + ((np.clip(deeper, -FLAT, FLAT - 1) + FLAT) << DEEPER)
    return moves
