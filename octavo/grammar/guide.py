"""Guide: one request's way through its constraint. Which tokens may come, and which one stands.

What is long in both is done for all guides of a step at once, in grammar/together.py.

A guide with a budget keeps, near the limit, a list of tokens that would make the text whole, never longer than what
is left. A sampled token after which no such list is found does not stand: the first of the list takes its place. So
an output that ends by length is whole. Far from the limit the list is not kept: how often it is looked for depends on
how much is to spare.
"""

from msgspec import Struct

from octavo.grammar.base import Grammar, Matcher, Words
from octavo.grammar.closing import PATIENT, Closer
from octavo.grammar.spec import GrammarSpec
from octavo.grammar.vocabulary import VocabularyTable

GAVE_UP = "the constraint became too complex to follow"
BROKEN = "a token does not fit the constraint"
STUCK = "the constraint has come to a place where nothing can follow and nothing may end"
QUOTE, BACKSLASH, COMMA, NEXT, SPACE = ord('"'), ord("\\"), ord(","), b"{,", b" \n\r\t"
OPENING, CLOSING = b"{[", b"}]"


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
        self._settled = False  # whether `weigh` left nothing to `take`
        self._kept: tuple[bool, bool, bool, int, int] | None = None  # what `_cost` knew before a token without room
        self._ends = ends
        self._limit = limit
        self._produced = 0
        self._markers = [text.encode() for text in spec.after]
        self._marker_ids = {vocabulary.by_name.get(marker, -1) for marker in self._markers} - {-1}
        self._free = bool(spec.after)
        self._tail = b""
        self._plan = self._opening() if spec.finish_within_budget else None
        self._last_way = compiled.opening or []  # to the end, from where it was last looked for
        self._spare = -1
        self._lost = 0  # times in a row that no end was found when one was looked for
        self._in_string = self._escaped = self._in_key = False
        self._last = 0  # byte outside of strings
        self._depth = 0  # brackets that are open
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

    @property
    def matcher(self) -> Matcher | None:
        """What says which tokens may come; None while any may."""
        return None if self._free else self._matcher

    def fill(self, row: Words) -> None:
        """Write the mask of the next token."""
        filled = True
        if self._free:
            row[:] = self._vocabulary.free_mask
        else:
            filled = self._matcher.fill(row)
        self._vocabulary.clear_ends(row)
        self.let_end(row, filled, not row.any())

    def let_end(self, row: Words, filled: bool, empty: bool) -> None:
        """Set the ends of sequence where the output may end, in a mask in which they are off. `filled`: what the
        matcher said of the row; `empty`: no token is in it."""
        if not filled:
            self.failure = GAVE_UP
            row.fill(0)
            empty = True
        if self._free:
            may_end = self._spec.optional and self._produced >= self._spec.min_tokens
        else:
            whole = self.failure is not None or self._matcher.is_accepting
            if not whole and empty:
                self.failure, whole = STUCK, True
            may_end = whole and (self._produced >= self._spec.min_tokens or empty)
        if may_end:
            for token in self._ends:
                bit = 1 << (token & 31)
                row[token >> 5] |= bit if bit < 1 << 31 else -(1 << 31)

    def take(self, token: int) -> int:
        """The token that stands in place of `token`; most often itself. May set `failure`."""
        matcher = self.weigh(token)
        return self.settle(token, matcher is None or matcher.accept(token))

    def weigh(self, token: int) -> Matcher | None:
        """The first half of `take`: the matcher that is to accept the token, if that is all there is to do."""
        self._produced += 1
        self._kept = None
        if self.failure is not None or token < 0 or (token in self._ends and self.is_whole):
            self._settled = True
            return None
        self._settled = False
        if self._spec.finish_within_budget and not self._affords(token):
            return None
        self._settled = not self._free
        return self.matcher

    def settle(self, token: int, accepted: bool) -> int:
        """The second half: the token that stands. `accepted`: what the matcher of `weigh` said."""
        if self._settled:
            if not accepted:
                self.failure = BROKEN
            return token
        if self._kept is None:
            return self._go(token)
        left = self._limit - self._produced
        before = self._free, self._tail, self._matcher.copy()
        if self._move(token) and self._closes(token, left):
            self._schedule(left)
            return token
        if self._plan is None:  # no end was found: look again behind the next token
            self._schedule(left)
            return token
        self._free, self._tail, self._matcher = before
        self._in_string, self._escaped, self._in_key, self._last, self._depth = self._kept
        return self._stand_in(left)

    def _affords(self, token: int) -> bool:
        """Whether there is room for the token and for an end behind it, whatever it begins."""
        left = self._limit - self._produced
        kept = self._in_string, self._escaped, self._in_key, self._last, self._depth
        cost = self._cost(token)
        self._spare -= cost
        if self._spare < 0 and not self._free:  # the end is never further off than this
            self._spare = max(self._spare, left - self._compiled.closer.furthest(self._depth))
        if self._spare < 0 and self._plan is None:  # the plan was let go while there was room to spare
            self._plan = self._way(left + 1, PATIENT if self._lost else 1)
            self._schedule(left + 1)
            self._spare -= cost
        if self._spare >= 0:
            self._plan = self._plan[1:] if self._plan and self._plan[0] == token else None
            return True
        self._kept = kept
        return False

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
        if not self._free and old is not None and len(old) <= left and self._matcher.closes(old):
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
        closer = self._compiled.closer
        found = closer.resume(self._matcher, self._last_way, left)
        if found is None and patience:
            found = closer.close(self._matcher, left, patience)
        if found:
            self._last_way = found
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
        if self._in_string and not self._escaped and QUOTE not in text and BACKSLASH not in text:
            return found
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
                self._depth += (byte in OPENING) - (byte in CLOSING)
                found += closer.step if byte == COMMA or byte in OPENING else 0
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
