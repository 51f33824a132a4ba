"""Log-probabilities with their tokens' text, in the shape that OpenAI's chat form has."""

from collections.abc import Sequence
from typing import overload

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from octavo.base.wire import TokenLogprobs
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


_PACK = Encoder().encode
_UNPACK = Decoder(TokenLogprobs).decode


class Positions(Sequence[PositionLogprobs]):
    """Positions that get their text when they are looked at. Until then each is one string of bytes: a long answer
    with the likeliest of each place would be millions of small objects, among which the garbage collector would look
    again and again while the answer grows."""

    __slots__ = ("_packed", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, given: Sequence[TokenLogprobs] = ()) -> None:
        self._tokenizer = tokenizer
        self._packed = [_PACK(each) for each in given]

    def add(self, more: "Positions") -> None:
        """More of them, behind."""
        self._packed += more._packed

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs: ...
    @overload
    def __getitem__(self, index: slice) -> "Positions": ...
    def __getitem__(self, index: int | slice) -> "PositionLogprobs | Positions":
        if isinstance(index, slice):
            some = Positions(self._tokenizer)
            some._packed = self._packed[index]
            return some
        return describe(self._tokenizer, _UNPACK(self._packed[index]))


def describe(tokenizer: Tokenizer, position: TokenLogprobs) -> PositionLogprobs:
    """One position with text added."""
    chosen = _logprob(tokenizer, position.token, position.logprob, position.rank)
    pairs = zip(position.ids, position.logprobs)
    top = [_logprob(tokenizer, token, value, rank) for rank, (token, value) in enumerate(pairs, 1)]
    return PositionLogprobs(chosen, top)


def _logprob(tokenizer: Tokenizer, token: int, value: float, rank: int) -> Logprob:
    data = tokenizer.token_bytes(token)
    return Logprob(data.decode("utf-8", "replace"), max(value, LOWEST), list(data), token, rank)
