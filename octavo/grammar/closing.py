"""A short way to a whole text from wherever a matcher stands, found by the matcher itself.

Depth first over texts that are likely to close something: brackets and quotes, short instances of the schemas at
hand, forced tokens, then what the mask offers. Any way found is a valid one, so a longer one than the shortest costs
a few tokens of freedom near the limit and never validity.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np

from octavo.grammar.base import Backend, Form, Matcher, Refused, Words
from octavo.grammar.closings import Closings, Run, closings
from octavo.grammar.growth import FAR
from octavo.grammar.rests import Rests, allowed, tokens_of, whole_rests
from octavo.grammar.sample import sample
from octavo.grammar.vocabulary import VocabularyTable

MAX_NODES = 128
HASTY = 0  # where there is another way to fall back on: only the likely moves
PATIENT = 2  # times as many moves where it is done once for all
SHALLOW = 32  # a second look that turns back early, for what recurs without end
MAX_BENDS = 6  # moves of a way that never turns back
MAX_WAYS = 4  # ways looked at for one that is short enough
MAX_DEPTH = 2048
DEPTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
WIDE = 4096  # a mask of more tokens than this is free text: single characters are all that need trying
FEW = 6  # tokens tried of a narrower mask, from each end of its lengths


class Closer:
    """The search, for one grammar. `costs`: what tokens use up of the room for it."""

    def __init__(self, vocabulary: VocabularyTable, known: Closings, opening: "Sequence[int] | None" = None) -> None:
        """`opening`: the whole text whose rests are known."""
        self._vocabulary = vocabulary
        self._opening = Rests(opening or (), known.rests)
        self._whole = known.whole
        self._outside, self._inside = _Moves(known.outside), _Moves(known.inside)
        self.is_json, self.is_quick = known.is_json, known.is_quick
        self.costs = known.costs
        self._brackets, self._letter = vocabulary.brackets, vocabulary.letter
        self._forms, self._quote = known.forms, vocabulary.cut(b'"') or []

    def close(self, matcher: Matcher, limit: int, patience: int = 1) -> list[int] | None:
        """Tokens that make the text whole; at most `limit` if a way so short was found. None: no way was found.

        With no patience only the likely ways are tried: for callers who have another way to fall back on.
        """
        if matcher.is_accepting:
            return []
        if limit < 1:
            return None
        for tokens in self._whole:
            if matcher.closes(tokens):
                return tokens
        # First with room for ways that shrink when packed, going nowhere twice; then with moves that lead back to where
        # they began, as a string must grow to its least length; then with no room, which turns back sooner.
        nodes = min(MAX_NODES, 8 * limit + 16)
        best = self._best(matcher, limit, 2 * limit + 16, nodes * max(1, patience), loops=False)
        if not patience:
            return best
        if best is None:
            best = self._best(matcher, limit, 2 * limit + 16, nodes * patience)
        if best is None or len(best) > limit:
            found = self._best(matcher, limit, min(limit, SHALLOW), nodes // 2 * patience)
            best = min((way for way in (best, found) if way is not None), key=len, default=None)
        if best is None or len(best) > limit:  # a place that no likely text closes: the middle of an address, of a date
            found = next(self._explore(matcher, limit, 2 * MAX_NODES), None)
            best = min((way for way in (best, found) if way is not None), key=len, default=None)
        return best

    def resume(self, matcher: Matcher, last: list[int], limit: int, row: "Words | None" = None) -> list[int] | None:
        """A way of at most `limit` tokens that is the rest of a known one: the `last`, or that from the beginning.

        Texts of one form end alike, so this spares most searches. `row`: the mask, where it is known.
        """
        if matcher.is_accepting:
            return []
        if len(last) <= limit and matcher.closes(last):  # within a string it stays the same
            return last
        if row is None:
            row = self._mask(matcher)
        if row is None or limit < 1:
            return None
        found = self._rest(matcher, row, last, limit)
        return self._deeper(matcher, last, limit) if found is None and last and not self.is_json else found

    def follow(self, matcher: Matcher, last: list[int], limit: int) -> list[int] | None:
        """A way of at most `limit` tokens that never turns back: what is forced, then the rest of a known way, else the
        likeliest move. A few tokens in a narrow place, as within one of some words, need no more; it costs little when
        it is in vain."""
        at, path = matcher.copy(), []
        for _ in range(MAX_BENDS):
            forced = self._vocabulary.greedy(at.forced())
            if forced and at.push(forced):
                path += forced
            elif not path and (form := self._set_form(at)):
                path += form
                continue
            row = None if at.is_accepting else self._mask(at)
            if row is not None:
                rest = self._rest(at, row, last, limit)
                if rest is None and len(path) <= 2 * limit:
                    move = next((move for move, _ in self._offers(row) if at.push(move)), None)
                    if move is None:
                        return None
                    path += move
                    continue
                path += rest or []
            way = path if len(path) <= limit else self.repacked(matcher, path)
            return way if len(way) <= limit and matcher.closes(way) else None
        return None

    def _set_form(self, at: Matcher) -> list[int] | None:
        """Go through a string that has a set form, if the matcher stands behind its first quote. That is seen without a
        mask, which is dear there."""
        if not self._forms or at.is_accepting or at.reach(self._quote):
            return None
        return next((form for form in self._forms if at.push(form)), None)

    def _rest(self, matcher: Matcher, row: Words, last: list[int], limit: int) -> list[int] | None:
        """What is left of a known way, the last one or that from the beginning, and makes the text whole."""
        rests = chain(whole_rests(row, last, limit), self._opening.offered(row, limit))
        return next((list(rest) for rest in rests if matcher.closes(rest)), None)

    def _deeper(self, matcher: Matcher, last: list[int], limit: int) -> list[int] | None:
        """The last way for a text that has nested further since: its last token as often as it may come."""
        count = matcher.reach([*last, *last[-1:] * (limit - len(last))])
        way = [*last, *last[-1:] * (count - len(last))]
        return way if len(last) < count and matcher.closes(way) else None

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

    def _best(self, matcher: Matcher, limit: int, longest: int, nodes: int, *, loops: bool = True) -> list[int] | None:
        best: list[int] | None = None
        for path in islice(self._search(matcher, longest, nodes, loops), MAX_WAYS if loops else 1):
            short = path if len(path) <= limit < FAR else self.repacked(matcher, path)
            if best is None or len(short) < len(best):
                best = short
            if len(best) <= limit:
                break
        return best

    def _search(self, matcher: Matcher, longest: int, most: int, loops: bool) -> Iterator[list[int]]:
        """Ways of at most `longest` tokens to a whole text, the likeliest first, as far as `most` moves go.

        Without `loops`, a move that leaves the mask as it was is taken for one that led nowhere, unless it closes
        something or adds a member.
        """
        stack: list[tuple[Matcher, list[int], Words, Iterator[tuple[list[int], bool]]]] = []
        nodes = 0

        def enter(at: Matcher, path: list[int], before: "Words | None") -> None:
            row = self._mask(at)
            if row is not None and (before is None or not np.array_equal(row, before)):
                stack.append((at, path, row, self._offers(row)))

        enter(matcher.copy(), [], None)
        while stack and nodes < most:
            at, path, row, moves = stack[-1]
            move, counts = next(moves, ([], False))
            if not move or len(stack) > MAX_DEPTH:
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
                enter(there, path + move, None if loops or counts else row)

    def _explore(self, matcher: Matcher, longest: int, most: int) -> Iterator[list[int]]:
        """Ways as `_search` gives them, by breadth, in single characters too. Places whose mask is new go first."""
        seen: set[bytes] = set()
        fresh: deque[tuple[Matcher, list[int], Words]] = deque()
        stale: deque[tuple[Matcher, list[int], Words]] = deque()
        nodes = 0

        def enter(at: Matcher, path: list[int]) -> None:
            row = self._mask(at)
            if row is not None:
                line = stale if (mask := row.tobytes()) in seen else fresh
                seen.add(mask)
                line.append((at, path, row))

        enter(matcher.copy(), [])
        while fresh or stale:
            at, path, row = (fresh or stale).popleft()
            single = self._vocabulary.single
            plain = ([token] for token in single[allowed(row, single)][::-1].tolist())  # signs before letters
            for move in (*(move for move, _ in self._likely(row)), *plain):
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

    def _likely(self, row: Words) -> Iterator[tuple[list[int], bool]]:
        """Moves that the mask lets begin, and whether each is a step on whatever the mask behind it."""
        # Both kinds of bracket may come only inside a string, where they close nothing.
        inside = self._brackets.size == 2 and bool(allowed(row, self._brackets).all())
        # Where a letter may come, no bracket closes anything either.
        worded = bool(allowed(row, self._letter).any())
        for run, counts in (self._inside if inside else self._outside).offered(row):
            yield run, counts and not worded

    def _offers(self, row: Words) -> Iterator[tuple[list[int], bool]]:
        """The likely moves, then some of all that the mask allows."""
        yield from self._likely(row)
        single, lengths = self._vocabulary.single, self._vocabulary.lengths
        tokens = tokens_of(row, WIDE)
        if tokens is None:
            found = single[allowed(row, single)][:FEW]
        else:
            tokens = tokens[np.argsort(-lengths[tokens], kind="stable")]
            found = tokens if tokens.size <= 2 * FEW else np.concatenate([tokens[:FEW], tokens[-FEW:]])
        for token in found.tolist():
            if lengths[token]:
                yield [token], False

    def repacked(self, matcher: Matcher, path: list[int]) -> list[int]:
        """The same text in fewer tokens, if it can be had."""
        packed = self._vocabulary.cut(self._vocabulary.text(path))
        return packed if packed is not None and len(packed) < len(path) and matcher.closes(packed) else path


class _Moves:
    """Runs in order of preference."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._first = np.array([run[0] for run, _ in runs], dtype=np.int64)

    def offered(self, row: Words) -> Iterator[tuple[list[int], bool]]:
        """Those whose first token the mask allows."""
        for index in np.flatnonzero(allowed(row, self._first)).tolist():
            yield self._runs[index]


def example(backend: Backend, vocabulary: VocabularyTable, pattern: str) -> str | None:
    """A short text that matches a regular expression, if one is found."""
    try:
        matcher = backend.compile(Form("regex", pattern)).matcher()
    except Refused:
        return None
    text = sample(pattern)
    known = None if text is None else vocabulary.greedy(text.encode("utf-8", "replace"))
    if known and matcher.closes(known):
        return text
    found = Closer(vocabulary, closings(vocabulary)).shortest(matcher)
    return None if found is None else vocabulary.text(found).decode("utf-8", "replace")
