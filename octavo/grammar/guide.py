"""Guide: one request's way through its constraint. Which tokens may come, and which one stands.

A guide with a budget keeps, near the limit, a list of tokens that would make the text whole, never longer than what
is left. A sampled token after which no such list is found does not stand: the first of the list takes its place. So
an output that ends by length is whole. Far from the limit the list is not kept: how often it is looked for depends on
how much is to spare.
"""

from msgspec import Struct

from octavo.grammar.base import Grammar, Matcher, Words
from octavo.grammar.closing import PATIENT, Closer, follow
from octavo.grammar.spec import GrammarSpec
from octavo.grammar.vocabulary import VocabularyTable

GAVE_UP = "the constraint became too complex to follow"
BROKEN = "a token does not fit the constraint"


class Compiled(Struct, frozen=True):
    """What all requests with one constraint share. `opening`: a short whole text; None if none was found."""

    grammar: Grammar
    closer: Closer
    opening: list[int] | None
    num_bytes: int


class Guide:
    """Call `fill` before each token and `take` with what was sampled."""

    def __init__(
        self, compiled: Compiled, spec: GrammarSpec, vocabulary: VocabularyTable, ends: frozenset[int], limit: int
    ) -> None:
        """`limit`: tokens that the output may have; `ends`: ids that end it."""
        self.failure: str | None = None
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._spec = spec
        self._matcher: Matcher = compiled.grammar.matcher()
        self._ends = ends
        self._limit = limit
        self._produced = 0
        self._markers = [text.encode() for text in spec.after]
        self._marker_ids = {vocabulary.by_name.get(marker, -1) for marker in self._markers} - {-1}
        self._free = bool(spec.after)
        self._tail = b""
        self._plan = self._opening() if spec.finish_within_budget else None
        self._check_at = 0
        self._schedule(limit)

    @property
    def shortest(self) -> int | None:
        """Tokens of the shortest output that was found, None if none was."""
        opening = self._opening()
        return None if opening is None else len(opening)

    @property
    def is_whole(self) -> bool:
        """Whether the output fits the constraint as it stands."""
        return self._spec.optional if self._free else self._matcher.is_accepting

    def fill(self, row: Words) -> None:
        """Write the mask of the next token."""
        if self._free:
            row[:] = self._vocabulary.free_mask
            if self._spec.optional and self._produced >= self._spec.min_tokens:
                for token in self._ends:
                    _set(row, token, True)
            return
        if not self._matcher.fill(row):
            self.failure = GAVE_UP
            row.fill(0)
        whole = self.failure is not None or self._matcher.is_accepting
        for token in self._vocabulary.ends:
            _set(row, token, False)
        if whole and (self._produced >= self._spec.min_tokens or not row.any()):
            for token in self._ends:
                _set(row, token, True)

    def take(self, token: int) -> int:
        """The token that stands in place of `token`; most often itself. May set `failure`."""
        self._produced += 1
        left = self._limit - self._produced
        if self.failure is not None or token < 0 or (token in self._ends and self.is_whole):
            return token
        if not self._spec.finish_within_budget or self._produced < self._check_at:
            self._plan = None
            if not self._move(token):
                self.failure = BROKEN
            return token
        before = self._free, self._tail, self._matcher.copy()
        if self._move(token) and self._closes(token, left):
            self._schedule(left)
            return token
        if self._plan is None:  # there was room to spare and yet no end was found: look again behind the next token
            self._check_at = self._produced + 1
            return token
        self._free, self._tail, self._matcher = before
        return self._stand_in(left)

    def _stand_in(self, left: int) -> int:
        """The first token of the plan; at the end of it, the end of the sequence."""
        if not self._plan:
            return min(self._ends, default=-1)
        token, self._plan = self._plan[0], self._plan[1:]
        if not self._move(token):
            self.failure = BROKEN
        self._schedule(left)
        return token

    def _closes(self, token: int, left: int) -> bool:
        """Find a plan for where the token has led. The old plan stays if there is none short enough."""
        old = self._plan
        if old and old[0] == token:
            self._plan = old[1:]
            return True
        if self._free:
            found = self._opening()
        elif old is not None and len(old) <= left and follow(self._matcher, old):
            found = old
        else:
            # Where the last look found no end, a longer one is due: without one the output may end unfinished.
            found = self._compiled.closer.close(self._matcher, left, 1 if old is not None else PATIENT)
        if found is None or len(found) > left:
            return False
        self._plan = found
        return True

    def _schedule(self, left: int) -> None:
        """When to look for a plan next. One token can put the end off by about ``step`` tokens, seldom by more."""
        stride = self._compiled.closer.step + 4
        spare = left - len(self._plan or ()) - 4 * stride
        self._check_at = self._produced + max(1, spare // (2 * stride))

    def _opening(self) -> list[int] | None:
        """A whole output from the start of the constraint, its marker included while that has not come."""
        opening = self._compiled.opening
        if opening is None or not self._free:
            return opening
        marker = self._markers[0]
        known = self._vocabulary.by_name.get(marker)
        tokens = [known] if known is not None else self._vocabulary.greedy(marker)
        return None if tokens is None else tokens + opening

    def _move(self, token: int) -> bool:
        if not self._free:
            return self._matcher.accept(token)
        if token in self._marker_ids:
            self._free = False
            return True
        text = self._vocabulary.tokens[token]
        known = self._tail + text
        for marker in self._markers:
            place = known.find(marker)
            if place >= 0 and place + len(marker) > len(self._tail):
                self._free = False
                return self._enter(known[place + len(marker) :])
        longest = max(map(len, self._markers))
        self._tail = known[-(longest - 1) :] if longest > 1 else b""
        return True

    def _enter(self, rest: bytes) -> bool:
        """What stands behind the marker within its last token; whitespace is let pass."""
        if not rest.strip():
            return True
        tokens = self._vocabulary.greedy(rest)
        return tokens is not None and self._matcher.push(tokens)


def _set(row: Words, token: int, on: bool) -> None:
    bit = 1 << (token & 31)
    value = (int(row[token >> 5]) | bit) if on else (int(row[token >> 5]) & ~bit)
    value &= 0xFFFFFFFF
    row[token >> 5] = value - (1 << 32) if value >= 1 << 31 else value
