"""The vocabulary as grammar engines and the search for short endings need it."""

from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from octavo.base.wire import Vocabulary
from octavo.grammar.growth import SPACE, among, count, move_table

HEAD = 3  # bytes by which tokens are looked up
MAX_KNOWN, MAX_KNOWN_BYTES = 8192, 256  # texts whose tokens are kept, and how long each may be
MOST_BYTES = 64  # of a token that a text is cut in


def without(token: int) -> int:
    """What is left of a full word of a mask, an int32, when the token's bit is taken out."""
    bit = token & 31
    return ~(1 << bit) if bit < 31 else 0x7FFFFFFF


def _has(bits: int, place: int) -> bool:
    return bool(bits >> place & 1)


class VocabularyTable:
    """Bytes of each token, padded to the width of the model's logits.

    `ends` are the ids that end a sequence. A special token has a name but no bytes that a constraint could match
    as text.
    """

    def __init__(self, wire: Vocabulary, width: int) -> None:
        tokens = list(wire.tokens[:width])
        self.tokens: list[bytes] = tokens + [b""] * (width - len(tokens))
        self.width = width
        self.words = -(-width // 32)
        self.last_word = (1 << width % 32) - 1 if width % 32 else -1  # of the mask that allows every token
        self.ends = tuple(token for token in wire.ends if 0 <= token < width)
        self.special = tuple(sorted({token for token in wire.special if 0 <= token < width} | set(self.ends)))
        self._cut: dict[bytes, list[int] | None] = {}

    def warm(self) -> None:
        """Work out now what is needed once."""
        _ = self.single, self.moves, self.free_mask, self.blanks, self.quotes, self.bare_quotes
        _ = self.enders, self.closers, self.by_name, self._lengths

    @cached_property
    def by_bytes(self) -> dict[bytes, int]:
        """Plain tokens by what they stand for; of equals the lowest id."""
        texts = self.tokens.copy()
        for token in self.special:
            texts[token] = b""
        found = dict(zip(reversed(texts), reversed(range(self.width))))
        found.pop(b"", None)
        return found

    @cached_property
    def by_name(self) -> dict[bytes, int]:
        """Special tokens by name."""
        return {self.tokens[token]: token for token in self.special}

    @cached_property
    def single(self) -> npt.NDArray[np.int64]:
        """Tokens of one byte, letters and digits first."""
        ones = [(text[0], token) for text, token in self.by_bytes.items() if len(text) == 1]
        ones.sort(key=lambda item: (not chr(item[0]).isalnum(), item[0]))
        return np.array([token for _, token in ones], dtype=np.int64)

    @cached_property
    def brackets(self) -> npt.NDArray[np.int64]:
        """First tokens of the two that close."""
        return self._first(b"}", b"]")

    @cached_property
    def letter(self) -> npt.NDArray[np.int64]:
        """A letter's token, if there is one."""
        return self._first(b"a")

    def _first(self, *texts: bytes) -> npt.NDArray[np.int64]:
        return np.array([tokens[0] for text in texts if (tokens := self.greedy(text))], dtype=np.int64)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of each token."""
        return np.array([len(text) for text in self.tokens], dtype=np.int64)

    @cached_property
    def moves(self) -> "list[array[int]]":
        """What each token does to a JSON text, by the place where it comes: see grammar/growth.py."""
        return move_table(self.tokens)

    @cached_property
    def free_mask(self) -> npt.NDArray[np.int32]:
        """Every token that has a text, ends of sequence left out."""
        free = self.lengths > 0
        free[list(self.ends)] = False
        return self._mask_of(free)

    @cached_property
    def blanks(self) -> npt.NDArray[np.int32]:
        """The mask of tokens that are nothing but JSON's whitespace."""
        return self._mask_of((self.lengths > 0) & (self._number_of(SPACE) == self.lengths))

    @cached_property
    def quotes(self) -> npt.NDArray[np.int32]:
        """The mask of tokens with a quote in them."""
        return self._mask_of(self._number_of(b'"') > 0)

    @cached_property
    def bare_quotes(self) -> npt.NDArray[np.int32]:
        """The mask of tokens with a quote at their end and no other, and no backslash."""
        found = (self._number_of(b'"') == 1) & (self._number_of(b"\\") == 0)
        for token in np.flatnonzero(found).tolist():
            found[token] = self.tokens[token].endswith(b'"')
        return self._mask_of(found)

    @cached_property
    def enders(self) -> npt.NDArray[np.int32]:
        """The mask of tokens with a comma or a closing bracket in them."""
        return self._mask_of(self._number_of(b",]}") > 0)

    @cached_property
    def closers(self) -> npt.NDArray[np.int32]:
        """The mask of tokens with a closing bracket in them."""
        return self._mask_of(self._number_of(b"]}") > 0)

    def _number_of(self, signs: bytes) -> npt.NDArray[np.int64]:
        """How many bytes of each token are among `signs`."""
        data = np.frombuffer(b"".join(self.tokens), dtype=np.uint8)
        return count(among(signs)[data], np.cumsum(self.lengths))

    def _mask_of(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
        bits = np.zeros(self.words * 32, dtype=np.uint8)
        bits[: self.width] = chosen
        return np.packbits(bits, bitorder="little").view(np.int32)

    def clear_ends(self, masks: npt.NDArray[np.int32]) -> None:
        """Take the ends of sequence out of masks. masks: [num_masks, words]."""
        words = masks.data  # far quicker for single words than numpy, whose code has to come from memory first
        for token in self.ends:
            word, kept = token >> 5, without(token)
            for row in range(len(masks)):
                words[row, word] &= kept

    @staticmethod
    def allow(row: npt.NDArray[np.int32], tokens: Iterable[int]) -> None:
        """Add tokens to a mask."""
        for token in tokens:
            bit = 1 << (token & 31)
            row[token >> 5] |= bit if bit < 1 << 31 else -(1 << 31)

    @cached_property
    def _lengths(self) -> dict[bytes, tuple[int, ...]]:
        """How many bytes the tokens have that begin with these HEAD, the most first."""
        found: dict[bytes, int] = {}
        known = found.get
        for text in self.by_bytes:
            length = len(text)
            if HEAD <= length <= MOST_BYTES:
                head = text[:HEAD]
                found[head] = known(head, 0) | 1 << length
        shared = {bits: tuple(filter(partial(_has, bits), range(MOST_BYTES, 0, -1))) for bits in set(found.values())}
        return {head: shared[bits] for head, bits in found.items()}

    def greedy(self, text: bytes) -> list[int] | None:
        """Tokens of `text`, the longest first at each place; None if some byte has no token."""
        table, lengths = self.by_bytes, self._lengths
        tokens, at = [], 0
        while at < len(text):
            for length in (*lengths.get(text[at : at + HEAD], ()), *range(HEAD - 1, 0, -1)):
                part = text[at : at + length]
                token = table.get(part)
                if token is not None:
                    tokens.append(token)
                    at += len(part)
                    break
            else:
                return None
        return tokens

    def cut(self, text: bytes) -> list[int] | None:
        """As `greedy`, for texts that come again and again: what it gives is kept, and must stay as it is."""
        known = self._cut  # another thread may put a new one in its place
        if text in known:
            return known[text]
        found = self.greedy(text)
        if len(text) <= MAX_KNOWN_BYTES:
            if len(known) >= MAX_KNOWN:
                known = self._cut = {}
            known[text] = found
        return found

    def text(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self.tokens[token] for token in tokens])
