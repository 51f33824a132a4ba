"""A short way to a whole text from wherever a matcher stands, found by the matcher itself.

Depth first over texts that are likely to close something: brackets and quotes, short instances of the schemas at
hand, forced tokens, then what the mask offers. Any way found is a valid one, so a longer one than the shortest costs
a few tokens of freedom near the limit and never validity.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from octavo.grammar.base import Backend, Form, Matcher, Refused, Words
from octavo.grammar.vocabulary import VocabularyTable

CLOSERS = (b"}", b"]", b'"}', b'"]', b'"')
QUOTES = (b'"}', b'"]', b'"')
FILLERS = (b"a", b"0", b"A", b"-")
OPENERS = (b":", b",", b'"', b"0", b"1", b"true", b"null", b"[", b"{", b"-", b".", b"a", b" ")
MAX_NODES = 128
PATIENT = 4  # times as many moves where it is done once for all
SHALLOW = 32  # a second look that turns back early, for what recurs without end
MAX_CONTENTS = 16
MAX_WAYS = 4  # ways looked at for one that is short enough
MAX_DEPTH = 2048
DEPTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
FAR = 1 << 20
WIDE = 4096  # a mask of more tokens than this is free text: single characters are all that need trying
FEW = 6  # tokens tried of a narrower mask, from each end of its lengths


class Closer:
    """The search, for one grammar. `step`: tokens by which one token can put the end further off, about."""

    def __init__(self, vocabulary: VocabularyTable, hints: tuple[bytes, ...] = ()) -> None:
        self._vocabulary = vocabulary
        self._whole = _tokens(vocabulary, hints[:1])
        contents = [hint[1:] for hint in hints if _is_string(hint)][:MAX_CONTENTS]
        self._outside = _Moves(_tokens(vocabulary, (*CLOSERS, *hints, *OPENERS)))
        self._inside = _Moves(_tokens(vocabulary, (*QUOTES, *contents, *FILLERS)))
        brackets = _tokens(vocabulary, (b"}", b"]"))
        self._brackets = np.array([tokens[0] for tokens in brackets], dtype=np.int64)
        self.step = max((len(tokens) for tokens in _tokens(vocabulary, hints)), default=2)

    def close(self, matcher: Matcher, limit: int, patience: int = 1) -> list[int] | None:
        """Tokens that make the text whole; at most `limit` if a way so short was found. None: no way was found."""
        if matcher.is_accepting:
            return []
        for tokens in self._whole:
            if follow(matcher, tokens):
                return tokens
        # First with room for ways that shrink when packed, then with none, which turns back sooner.
        best = self._best(matcher, limit, 2 * limit + 16, MAX_NODES * patience)
        if best is None or len(best) > limit:
            found = self._best(matcher, limit, min(limit, SHALLOW), MAX_NODES // 2 * patience)
            best = min((way for way in (best, found) if way is not None), key=len, default=None)
        if best is None:  # a place that no likely text closes: the middle of an address, of a date
            path = next(self._explore(matcher, 2 * limit + 16, 2 * MAX_NODES * patience), None)
            best = None if path is None else self._repacked(matcher, path)
        return best

    def shortest(self, matcher: Matcher) -> list[int] | None:
        """The shortest way that is found from the start. For once, not for each token."""
        best = self.close(matcher, FAR, PATIENT)
        if best in self._whole:
            return best
        for limit in DEPTHS:
            if best is not None and limit >= len(best):
                break
            found = self._best(matcher, limit, limit, MAX_NODES)
            if found is not None and (best is None or len(found) < len(best)):
                return found
        return best

    def _best(self, matcher: Matcher, limit: int, longest: int, nodes: int) -> list[int] | None:
        best: list[int] | None = None
        for path in islice(self._search(matcher, longest, nodes), MAX_WAYS):
            short = self._repacked(matcher, path)
            if best is None or len(short) < len(best):
                best = short
            if len(best) <= limit:
                break
        return best

    def _search(self, matcher: Matcher, longest: int, most: int) -> Iterator[list[int]]:
        """Ways of at most `longest` tokens to a whole text, the likeliest first, as far as `most` moves go."""
        stack: list[tuple[Matcher, list[int], Iterator[list[int]]]] = []
        nodes = 0

        def enter(at: Matcher, path: list[int]) -> None:
            row = self._mask(at)
            if row is not None:
                stack.append((at, path, self._offers(row)))

        enter(matcher.copy(), [])
        while stack and nodes < most:
            at, path, moves = stack[-1]
            move = next(moves, None)
            if move is None or len(stack) > MAX_DEPTH:
                stack.pop()
                continue
            nodes += 1
            if len(path) + len(move) > longest:
                continue
            there = at.copy()
            if not there.push(move):
                continue
            if there.is_accepting:
                yield path + move
            else:
                enter(there, path + move)

    def _explore(self, matcher: Matcher, longest: int, most: int) -> Iterator[list[int]]:
        """Ways as `_search` gives them, by breadth: a move that leads to a mask seen before has led nowhere new."""
        seen: set[bytes] = set()
        line: deque[tuple[Matcher, list[int], Words]] = deque()
        nodes = 0

        def enter(at: Matcher, path: list[int]) -> None:
            row = self._mask(at)
            if row is not None and (mask := row.tobytes()) not in seen:
                seen.add(mask)
                line.append((at, path, row))

        enter(matcher.copy(), [])
        while line:
            at, path, row = line.popleft()
            single = self._vocabulary.single
            plain = ([token] for token in single[_allowed(row, single)][::-1].tolist())  # signs before letters
            for move in (*self._offers(row), *plain):
                nodes += 1
                if nodes > most:
                    return
                there = at.copy()
                if len(path) + len(move) > longest or not there.push(move):
                    continue
                if there.is_accepting:
                    yield path + move
                else:
                    enter(there, path + move)

    def _mask(self, at: Matcher) -> "Words | None":
        row = np.empty(self._vocabulary.words, dtype=np.int32)
        return row if at.fill(row) else None

    def _offers(self, row: Words) -> Iterator[list[int]]:
        """Moves that the mask lets begin."""
        # Both kinds of bracket may come only inside a string, where they close nothing.
        inside = self._brackets.size == 2 and bool(_allowed(row, self._brackets).all())
        yield from (self._inside if inside else self._outside).offered(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        count = int(bits.sum())
        single, lengths = self._vocabulary.single, self._vocabulary.lengths
        if count > WIDE:
            found = single[_allowed(row, single)][:FEW]
        else:
            tokens = np.flatnonzero(bits[: self._vocabulary.width])
            tokens = tokens[np.argsort(-lengths[tokens], kind="stable")]
            found = tokens if tokens.size <= 2 * FEW else np.concatenate([tokens[:FEW], tokens[-FEW:]])
        for token in found.tolist():
            if lengths[token]:
                yield [token]

    def _repacked(self, matcher: Matcher, path: list[int]) -> list[int]:
        """The same text in fewer tokens, if it can be had."""
        packed = self._vocabulary.greedy(self._vocabulary.text(path))
        return packed if packed is not None and len(packed) < len(path) and follow(matcher, packed) else path


class _Moves:
    """A list of token runs in order of preference."""

    def __init__(self, runs: list[list[int]]) -> None:
        self._runs = runs
        self._first = np.array([run[0] for run in runs], dtype=np.int64)

    def offered(self, row: Words) -> Iterator[list[int]]:
        """Those whose first token the mask allows."""
        for index in np.flatnonzero(_allowed(row, self._first)).tolist():
            yield self._runs[index]


def follow(matcher: Matcher, tokens: list[int]) -> bool:
    """Whether these tokens make the text whole from here."""
    end = matcher.copy()
    return end.push(tokens) and end.is_accepting


def example(backend: Backend, vocabulary: VocabularyTable, pattern: str) -> str | None:
    """A short text that matches a regular expression, if one is found."""
    try:
        matcher = backend.compile(Form("regex", pattern)).matcher()
    except Refused:
        return None
    found = Closer(vocabulary).shortest(matcher)
    return None if found is None else vocabulary.text(found).decode("utf-8", "replace")


def _is_string(hint: bytes) -> bool:
    """Whether it is one JSON string that is not empty."""
    return len(hint) > 2 and hint[:1] == hint[-1:] == b'"' and b'"' not in hint[1:-1]


def _allowed(row: Words, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = ((row[tokens >> 5] >> (tokens & 31)) & 1) == 1
    return found


def _tokens(vocabulary: VocabularyTable, texts: Sequence[bytes]) -> list[list[int]]:
    return [tokens for text in texts if (tokens := vocabulary.greedy(text))]
