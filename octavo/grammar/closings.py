"""Closings: what the search for an end begins with, in tokens: texts that are likely to close something.

To cut them takes a millisecond or two of the interpreter, so it is done where a constraint is tried out, and what came
of it is handed over.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from octavo.grammar.growth import Costs, costs_of_any, costs_of_json
from octavo.grammar.rests import Rest, rests_of
from octavo.grammar.vocabulary import VocabularyTable

CLOSERS = (b"}", b"]", b'"}', b'"]', b'"')
QUOTES = (b'"}', b'"]', b'"')
FILLERS = (b"a", b"0", b"A", b"-")
WITHIN = (b"\x80", b"\x90", b"\xa0")  # bytes of which one goes on within any character of several
OPENERS = (*WITHIN, b":", b",", b'"', b"0", b"1", b"true", b"false", b"null", b"[", b"{", b"-", b".", b"a", b" ")
MAX_CONTENTS = 16
MAX_RESTS = 160
SET = 8  # bytes from which a string that stands in a hint is taken for one of a set form: a date, an address
NUDGE, STEP = 4, 4  # at least. Four is what false needs behind its f, and \u its digits
BYTES_A_TOKEN = 2  # of text that is known word for word, with tokens that are not made for it
REACH = 128  # tokens that one may ask for in a form of which nothing is known: another tool's name, all its arguments

Run = tuple[list[int], bool]
"""Tokens of a text; whether it closes something or adds a member, and so is a step on whatever comes of it."""


class Closings(Struct, frozen=True, array_like=True):
    """One constraint's. Runs stand in order of preference."""

    whole: list[list[int]]  # short texts that fit the constraint as a whole
    outside: list[Run]  # of a string
    inside: list[Run]
    costs: Costs  # what tokens use up of the room for an end
    is_json: bool = False
    rests: list[Rest] = []  # of the opening
    forms: list[list[int]] = []  # strings of a set form, behind their first quote
    is_quick: bool = False  # masks take so little that tokens may be tried one after another

    def opened(self, vocabulary: VocabularyTable, opening: "Sequence[int] | None") -> "Closings":
        """The same, a whole text being known."""
        known = replace(self, rests=rests_of(vocabulary, opening or ()))
        if self.is_json:
            return known
        # Nothing is known of such a form but how this text ends: what ended it comes first, the last of it before all.
        ends: list[Run] = [([token], True) for token in dict.fromkeys(reversed(opening or ()))][:MAX_CONTENTS]
        costs = costs_of_any(max(self.costs.turns[0] - 1, len(opening or ()), REACH))
        return replace(known, costs=costs, outside=ends + self.outside, inside=ends + self.inside)

    @property
    def num_bytes(self) -> int:
        """Memory that it holds, about."""
        runs = (
            *self.whole,
            *(run for run, _ in (*self.outside, *self.inside)),
            *self.forms,
            *(lead for _, lead, _ in self.rests),
        )
        return 160 * len(runs) + 8 * sum(map(len, runs))


def closings(
    vocabulary: VocabularyTable, hints: tuple[bytes, ...] = (), *, is_json: bool = False, longest: int = 0
) -> Closings:
    """`hints`: short texts that may close it; the first one does so as a whole. `longest`: bytes of the longest text
    that the grammar holds word for word."""
    whole = _tokens(vocabulary, hints[:1])
    contents = [hint[1:] for hint in hints if _is_string(hint)][:MAX_CONTENTS]
    contents += [hint[1:] for hint in hints if hint[:1] == b'"' and not _is_string(hint)][:MAX_CONTENTS]
    rests = _rests(hints)
    forms = _forms(hints)[:MAX_CONTENTS]
    outside = _runs(vocabulary, (*CLOSERS, *forms, *hints, *rests, *OPENERS))
    inside = _runs(vocabulary, (*QUOTES, *contents, *rests, *FILLERS))
    first = (hints[0], b"," + hints[0]) if hints else ()
    lengths = [len(tokens) for tokens in _tokens(vocabulary, [hint for hint in hints if hint not in first])]
    strings = [len(tokens) for tokens in _tokens(vocabulary, [hint for hint in hints if _is_string(hint)])]
    # Tokens by which one can put the end further off, about: one that begins a string, one that begins a value or a
    # member, and any other. Within a set form a turn can cost about half of it: an offset in place of a Z.
    word = max([NUDGE, *strings])
    nudge = max(NUDGE, longest // BYTES_A_TOKEN, word // 2)
    step = max([STEP, word, *(lengths if is_json else [len(tokens) for tokens in whole])])
    instance = max([STEP, word, *lengths, *map(len, whole)])
    costs = costs_of_json(nudge, step, word, step, instance) if is_json else costs_of_any(step)
    return Closings(whole, outside, inside, costs, is_json, forms=_tokens(vocabulary, forms))


def _runs(vocabulary: VocabularyTable, texts: Sequence[bytes]) -> list[Run]:
    runs = [(vocabulary.greedy(text), text in CLOSERS or text in WITHIN or text[:1] == b"," != text) for text in texts]
    return [(run, counts) for run, counts in runs if run]


def _rests(hints: Sequence[bytes]) -> list[bytes]:
    """What may be left of strings of a set form when some characters have been written; short ones first."""
    rests = {form[at:] for form in _forms(hints) for at in range(len(form) - 1)}
    return sorted(rests, key=lambda rest: (len(rest), rest))[:MAX_RESTS]


def _forms(hints: Sequence[bytes]) -> list[bytes]:
    """Strings of a set form behind their first quote."""
    return [hint[1:] for hint in hints if _is_string(hint) and len(hint) >= SET]


def _is_string(hint: bytes) -> bool:
    """Whether it is one JSON string that is not empty."""
    return len(hint) > 2 and hint[:1] == hint[-1:] == b'"' and b'"' not in hint[1:-1]


def _tokens(vocabulary: VocabularyTable, texts: Sequence[bytes]) -> list[list[int]]:
    return [tokens for text in texts if (tokens := vocabulary.greedy(text))]
