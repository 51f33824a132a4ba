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
STUCK = "the constraint has come to a place where nothing can follow and nothing may end"
QUOTE, BACKSLASH, OPENING, NEXT, SPACE = ord('"'), ord("\\"), b"{[,", b"{,", b" \n\r\t"


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
        self._known = self._plan or []  # the last way that was found, from whatever place
        self._spare = -1
        self._lost = 0  # times in a row that no end was found when one was looked for
        self._in_string = self._escaped = self._in_key = False
        self._last = 0  # byte outside of strings
        self._schedule(limit)

    @property
    def param(self) -> str:
        """The field that the constraint came in."""
        return self._spec.param

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
        if not whole and not row.any():
            self.failure, whole = STUCK, True
        if whole and (self._produced >= self._spec.min_tokens or not row.any()):
            for token in self._ends:
                _set(row, token, True)

    def take(self, token: int) -> int:
        """The token that stands in place of `token`; most often itself. May set `failure`."""
        self._produced += 1
        left = self._limit - self._produced
        if self.failure is not None or token < 0 or (token in self._ends and self.is_whole):
            return token
        if not self._spec.finish_within_budget:
            return self._go(token)
        kept = self._in_string, self._escaped, self._in_key, self._last
        cost = self._cost(token)
        self._spare -= cost
        if self._spare < 0 and self._plan is None:  # the plan was let go while there was room to spare
            self._plan = self._way(left + 1, PATIENT if self._lost else 1)
            self._schedule(left + 1)
            self._spare -= cost
        if self._spare >= 0:
            self._plan = self._plan[1:] if self._plan and self._plan[0] == token else None
            return self._go(token)
        before = self._free, self._tail, self._matcher.copy()
        if self._move(token) and self._closes(token, left):
            self._schedule(left)
            return token
        if self._plan is None:  # no end was found: look again behind the next token
            self._schedule(left)
            return token
        self._free, self._tail, self._matcher = before
        self._in_string, self._escaped, self._in_key, self._last = kept
        return self._stand_in(left)

    def _go(self, token: int) -> int:
        """The token stands."""
        if not self._move(token):
            self.failure = BROKEN
        return token

    def _stand_in(self, left: int) -> int:
        """The first token of the plan; at the end of it, the end of the sequence."""
        if not self._plan:
            return min(self._ends, default=-1)
        token, self._plan = self._plan[0], self._plan[1:]
        self._cost(token)
        self._schedule(left)
        return self._go(token)

    def _closes(self, token: int, left: int) -> bool:
        """Find a plan for where the token has led. The old plan stays if there is none short enough."""
        old = self._plan
        if old and old[0] == token:
            self._plan = old[1:]
            return True
        if not self._free and old is not None and len(old) <= left and follow(self._matcher, old):
            return True
        found = self._way(left, 0 if old is not None else PATIENT)
        if found is None or len(found) > left:
            return False
        self._plan = found
        return True

    def _way(self, left: int, patience: int) -> list[int] | None:
        """Tokens that end the output from here, few if there are few left. Where no end is known, patience is due:
        without one the output may end unfinished."""
        if self._free:
            return self._opening()
        found = self._compiled.closer.close(self._matcher, left, patience, self._known)
        self._known = found or self._known
        return found

    def _schedule(self, left: int) -> None:
        """What may be spent before the next look: a token each, and whatever tokens put the end further off."""
        if self._plan is not None:
            self._lost, self._spare = 0, left - len(self._plan)
            return
        self._lost += 1  # a long search that is in vain is tried again ever more seldom
        self._spare = min(1 << self._lost, 1 + left // 4)

    def _cost(self, token: int) -> int:
        """One, and by how many tokens this one may put the end further off, about."""
        return 1 if self._free else 1 + self._growth(self._vocabulary.tokens[token])

    def _growth(self, text: bytes) -> int:
        """Of JSON, brackets, commas and quotes outside of strings begin what must be finished; of other forms, any
        token may."""
        closer = self._compiled.closer
        if not closer.is_json:
            return max(closer.step, len(self._compiled.opening or ()))
        found = closer.step if self._in_key else closer.nudge
        for byte in text:
            if self._escaped:
                self._escaped = False
            elif byte == BACKSLASH:
                self._escaped = self._in_string
            elif byte == QUOTE:
                self._in_string = not self._in_string
                self._in_key = self._in_string and self._last in NEXT
                found += closer.word if self._in_string else 0
            elif not self._in_string and byte not in SPACE:
                self._last = byte
                found += closer.step if byte in OPENING else 0
        return found

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
        self._growth(rest)
        tokens = self._vocabulary.greedy(rest)
        return tokens is not None and self._matcher.push(tokens)


def _set(row: Words, token: int, on: bool) -> None:
    bit = 1 << (token & 31)
    value = (int(row[token >> 5]) | bit) if on else (int(row[token >> 5]) & ~bit)
    value &= 0xFFFFFFFF
    row[token >> 5] = value - (1 << 32) if value >= 1 << 31 else value
