"""Log-probabilities with their tokens' text, in the shape that OpenAI's chat form has."""

from collections.abc import Sequence
from itertools import repeat
from typing import overload

from msgspec import Struct

from octavo.base import scores
from octavo.text.tokenizer import Tokenizer

LOWEST = -9999.0  # stands for minus infinity, which JSON cannot hold


class Logprob(Struct, frozen=True):
    """One candidate at one position. `bytes` is what the token stands for, also where it is part of a character."""

    token: str
    logprob: float
    bytes: list[int]
    id: int
    rank: int


class PositionLogprobs(Struct, frozen=True):
    """The chosen token and the likeliest ones, best first; the chosen one is among `top` only if it is likely."""

    chosen: Logprob
    top: list[Logprob]


class Positions(Sequence[PositionLogprobs]):
    """Positions that get their text when they are looked at. Until then they are one string of bytes (base/scores): a
    long answer with the likeliest of each place would be millions of small objects, among which the garbage collector
    would look again and again while the answer grows."""

    __slots__ = ("_lines", "tokenizer")

    def __init__(self, tokenizer: Tokenizer, lines: bytes = b"") -> None:
        self.tokenizer = tokenizer
        self._lines: bytes | bytearray = lines

    def add(self, lines: bytes) -> None:
        """More of them, behind."""
        if not isinstance(self._lines, bytearray):
            self._lines = bytearray(self._lines)
        self._lines += lines

    def columns(self) -> list[tuple[int, list[int], list[float]]]:
        """For each position the chosen token's rank, and ids and values of the chosen one and the likeliest."""
        found = scores.columns(self._lines)
        if any(min(values) < LOWEST for _, _, values in found):
            found = [(rank, ids, [max(value, LOWEST) for value in values]) for rank, ids, values in found]
        return found

    def chosen(self) -> list[float]:
        """Log-probabilities of the chosen tokens."""
        return [max(value, LOWEST) for value in scores.chosen(self._lines)]

    def __len__(self) -> int:
        return scores.count(self._lines)

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs: ...
    @overload
    def __getitem__(self, index: slice) -> "list[PositionLogprobs]": ...
    def __getitem__(self, index: int | slice) -> "PositionLogprobs | list[PositionLogprobs]":
        place = range(len(self))[index]
        if isinstance(place, range):
            return [self[each] for each in place]
        size = scores.line_bytes(self._lines)
        (found,) = described(self.tokenizer, bytes(self._lines[place * size : (place + 1) * size]))
        assert found is not None
        return found


def described(tokenizer: Tokenizer, lines: bytes) -> list[PositionLogprobs | None]:
    """Positions with text added; None where nothing is known."""
    return [_position(tokenizer, rank, ids, values) if rank else None for rank, ids, values in scores.columns(lines)]


def _position(tokenizer: Tokenizer, rank: int, ids: list[int], values: list[float]) -> PositionLogprobs:
    ranks = (rank, *range(1, len(ids)))
    chosen, *top = map(_logprob, repeat(tokenizer), ids, values, ranks)
    return PositionLogprobs(chosen, top)


def _logprob(tokenizer: Tokenizer, token: int, value: float, rank: int) -> Logprob:
    data = tokenizer.token_bytes(token)
    return Logprob(data.decode("utf-8", "replace"), max(value, LOWEST), list(data), token, rank)
