"""What comes before a constraint begins: thoughts up to their closing mark, then any text up to the first of some
markers. A request may have either, both, or neither."""

from collections.abc import Sequence

from octavo.base.errors import UserError
from octavo.grammar.base import Matcher, Words
from octavo.grammar.spec import GrammarSpec, Thoughts
from octavo.grammar.vocabulary import VocabularyTable

BREAKS = 2  # lines that may end between thoughts and what follows them
State = tuple[int, int, bool, int, bytes, int]


class Preface:
    """One request's. A marker is a special token, or plain characters however they are cut in tokens.

    Thoughts may have to be opened first. As long as the output may be the opening or the constraint's beginning, it
    `is_open`, and counts as both. Raises UserError where thoughts have a bound and an end that no tokens stand for.
    """

    def __init__(self, vocabulary: VocabularyTable, spec: GrammarSpec) -> None:
        self._vocabulary = vocabulary
        self._optional = spec.optional
        parts = [] if spec.thoughts is None else [_Part(vocabulary, spec.thoughts)]
        self._parts = [*parts, _Part(vocabulary, Thoughts(spec.after))] if spec.after else parts
        self._at = self._opened = self._said = 0  # the part, tokens of its opening, tokens behind that
        self._either = True  # whether these tokens of the opening may be the constraint's as well
        self._tail = b""  # what may be the beginning of a marker
        self._breaks = BREAKS if spec.thoughts is not None and not spec.after else 0  # that may still come, at the end

    @property
    def state(self) -> State:
        """What `read` changes."""
        return self._at, self._opened, self._either, self._said, self._tail, self._breaks

    @state.setter
    def state(self, state: State) -> None:
        self._at, self._opened, self._either, self._said, self._tail, self._breaks = state

    @property
    def is_opening(self) -> bool:
        """Whether the opening of thoughts may come, or go on."""
        return self._at < len(self._parts) and self._opened < len(self._parts[self._at].opening)

    @property
    def is_open(self) -> bool:
        """Whether the next token may be the constraint's."""
        left = len(self._parts) - self._at
        return left == 0 or (left == 1 and self._either and self.is_opening)

    @property
    def offers(self) -> Sequence[int]:
        """Tokens that go on with the opening, or stand between thoughts and the constraint."""
        if self.is_opening:
            return [self._parts[self._at].opening[self._opened]]
        lines = self._vocabulary.by_bytes
        return [lines[text] for text in (b"\n" * count for count in range(1, self._breaks + 1)) if text in lines]

    def confine(self, row: Words, matcher: Matcher) -> bool:
        """Take out of a mask of free text what may not come, if anything. `matcher`: the constraint's. False if that
        gave up."""
        if self.is_open:
            filled = matcher.fill(row)
            self._vocabulary.clear_ends(row[None])
            self._vocabulary.allow(row, self.offers)
            return filled
        part = self._parts[self._at]
        forced: Sequence[int] = () if self._either else self.offers
        if not self.is_opening:
            forced = self._closing(part)[:1] if self._is_spent(part) else ()
        if forced:
            row.fill(0)
            self._vocabulary.allow(row, forced)
        return True

    def ends_before(self, token: int, matcher: Matcher) -> bool:
        """Whether the constraint begins with this token."""
        if not self.is_open:
            return False
        return token not in self.offers or (not self.is_opening and matcher.copy().accept(token))

    @property
    def may_end(self) -> bool:
        """Whether the output may end here, though the constraint has not begun."""
        return self._optional and (self._at == len(self._parts) - 1 or (self.is_opening and self._either))

    def cost(self, token: int) -> int:
        """By how many tokens the end of the output is further off behind this one, at most, and the token itself."""
        if self._opened or not self.is_opening or token != self._parts[self._at].opening[0]:
            return 1
        return len(self._parts[self._at].opening) + len(self._parts[self._at].closing)

    def read(self, token: int, either: bool = False) -> bytes | None:
        """Go on by a token. If the constraint begins behind it, what of it is the constraint's; else None.

        `either`: whether one of the opening may be the constraint's too.
        """
        if self._at == len(self._parts):
            self._breaks -= len(self._vocabulary.tokens[token])
            return None if self._breaks else b""
        part = self._parts[self._at]
        if self.is_opening:
            if token == part.opening[self._opened]:
                self._opened += 1
                self._either = either or self._at + 1 < len(self._parts)
                return None
            said = self._vocabulary.text(part.opening[: self._opened])  # no thoughts
            self._next()
            self._search(self._parts[self._at], said)
            return self.read(token)
        self._said += 1
        rest = b"" if token in part.ids else self._search(part, self._vocabulary.tokens[token])
        if rest is None:
            return None
        self._next()
        if self._at < len(self._parts):
            return self._search(self._parts[self._at], rest)
        if rest.strip():
            self._breaks = 0
        return None if self._breaks else rest

    def marker(self) -> list[int] | None:
        """Tokens that lead to the constraint; None if there are none."""
        found: list[int] = []
        for part in self._parts[self._at :]:
            if not part.closing:
                return None
            if part is self._parts[self._at] and (self._opened or not part.opening):
                found += part.opening[self._opened :] + (self._closing(part) if self._is_spent(part) else part.closing)
            elif not part.opening:
                found += part.closing
        return found

    def _is_spent(self, part: "_Part") -> bool:
        return part.most is not None and self._said >= part.most

    def _closing(self, part: "_Part") -> list[int]:
        """Tokens that end the part from here; it may have begun to end."""
        marker = part.markers[0]
        begun = next((count for count in range(len(marker) - 1, 0, -1) if self._tail.endswith(marker[:count])), 0)
        rest = self._vocabulary.greedy(marker[begun:]) if begun and not part.ids else None
        return rest or part.closing

    def _next(self) -> None:
        self._at += 1
        self._opened = self._said = 0
        self._tail = b""

    def _search(self, part: "_Part", text: bytes) -> bytes | None:
        """Go on by a text. If a marker ends in it, what stands behind the marker."""
        known = self._tail + text
        for marker in part.markers:
            place = known.find(marker)
            if place >= 0 and place + len(marker) > len(self._tail):
                return known[place + len(marker) :]
        self._tail = known[-(part.longest - 1) :] if part.longest > 1 else b""
        return None


class _Part:
    """Text from behind the tokens `opening`, which may not come, to one of `markers`, of which `closing` is one."""

    __slots__ = ("closing", "ids", "longest", "markers", "most", "opening")

    def __init__(self, vocabulary: VocabularyTable, thoughts: Thoughts) -> None:
        self.markers = [text.encode() for text in thoughts.closings]
        self.longest = max(map(len, self.markers))
        self.ids = {vocabulary.by_name.get(marker, -1) for marker in self.markers} - {-1}
        self.opening = _tokens(vocabulary, thoughts.opening.encode())
        self.closing = _tokens(vocabulary, self.markers[0])
        self.most = thoughts.most
        if self.most is not None and not self.closing:
            raise UserError("this model's thoughts have no end that could be enforced", param="thinking_token_budget")


def _tokens(vocabulary: VocabularyTable, text: bytes) -> list[int]:
    known = vocabulary.by_name.get(text)
    return [known] if known is not None else vocabulary.greedy(text) or []
