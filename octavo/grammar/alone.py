"""One guide by itself: in plain words what grammar/together.py does for all of a step at once."""

import numpy as np

from octavo.grammar.base import Words
from octavo.grammar.guide import BROKEN, Guide


def fill(guide: Guide, row: Words) -> None:
    """Write the mask of the next token."""
    row[:] = guide.vocabulary.free_mask
    matcher = guide.matcher
    filled = matcher is None or matcher.fill(row)
    guide.vocabulary.clear_ends(row[None])
    guide.let_end(row, filled)
    if guide.is_tight:
        guide.tighten(row)


def take(guide: Guide, token: int) -> int:
    """The token that stands in place of `token`; most often itself. The guide may fail."""
    verdict = (token, True) if guide.affords(token) else guide.weigh(token)
    if verdict is None:
        row = np.empty(guide.vocabulary.words, dtype=np.int32)
        return guide.search(token, row if guide.beyond.fill(row) else None)
    stands, moves = verdict
    matcher = guide.matcher
    if moves and matcher is not None and not matcher.accept(stands):
        guide.failure = BROKEN
    return stands
