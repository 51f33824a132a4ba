"""Many guides at once: masks and moves of one step, with the interpreter's lock given up once for all of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.grammar.base import Matcher, Words
from octavo.grammar.guide import BROKEN, Guide
from octavo.grammar.vocabulary import VocabularyTable


def fill(guides: Sequence[Guide], masks: Words, vocabulary: VocabularyTable) -> None:
    """Write the masks of the guides' next tokens. masks: [num_guides, words], int32."""
    matchers = []
    for place, guide in enumerate(guides):
        guide.seen = masks, place
        matchers.append(guide.matcher)
    doubtful: dict[int, bool] = {}
    for kind, places in _kinds(matchers).items():
        if kind is None:
            masks[places] = vocabulary.free_mask
            doubtful.update(dict.fromkeys(places, True))
        else:
            doubtful.update(kind.fill_many([matchers[place] for place in places], masks, places))
    vocabulary.clear_ends(masks)
    for place, filled in doubtful.items():
        guides[place].let_end(masks[place], filled)


def take(guides: Sequence[Guide], tokens: Sequence[int], vocabulary: VocabularyTable) -> list[int]:
    """The tokens that stand in place of the sampled `tokens`. Guides may fail."""
    standing = list(tokens)
    moving: list[Matcher | None] = []
    unsure: list[int] = []
    for place, (guide, token) in enumerate(zip(guides, tokens)):
        verdict = (token, True) if guide.affords(token) else guide.weigh(token)
        if verdict is None:
            unsure.append(place)
            moving.append(None)
            continue
        standing[place], moves = verdict
        moving.append(guide.matcher if moves else None)
    if unsure:
        rows = _masks_beyond([guides[place] for place in unsure], vocabulary.words)
        for place, row in zip(unsure, rows):
            standing[place] = guides[place].search(tokens[place], row)
    for kind, places in _kinds(moving).items():
        if kind is None:
            continue
        accepted = kind.accept_many([moving[place] for place in places], [standing[place] for place in places])
        if not all(accepted):
            for place, stands in zip(places, accepted):
                if not stands:
                    guides[place].failure = BROKEN
    return standing


def _masks_beyond(guides: Sequence[Guide], words: int) -> "list[Words | None]":
    """Masks behind tokens that there may be no room for; None where the engine gave up."""
    masks = np.empty((len(guides), words), dtype=np.int32)
    rows: list[Words | None] = list(masks)
    beyond = [guide.beyond for guide in guides]
    for kind, places in _kinds(beyond).items():
        for place, filled in kind.fill_many([beyond[place] for place in places], masks, places).items():
            if not filled:
                rows[place] = None
    return rows


def _kinds(matchers: Sequence[Matcher | None]) -> dict[Any, Sequence[int]]:
    """Places of the matchers of each engine's class; of those that are missing, under None."""
    kinds: list[Any] = [None if matcher is None else type(matcher) for matcher in matchers]
    if kinds and kinds.count(kinds[0]) == len(kinds):
        return {kinds[0]: range(len(kinds))}
    return {kind: [place for place, each in enumerate(kinds) if each is kind] for kind in set(kinds)}
