"""Many guides at once: masks and moves, with one call of an engine of grammars for all that are its."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from octavo.grammar.base import Words
from octavo.grammar.guide import BROKEN, Guide
from octavo.grammar.vocabulary import VocabularyTable


class Together:
    """`fill` before a step's tokens are drawn and `take` with them, each with the guides of its step."""

    def __init__(self, vocabulary: VocabularyTable) -> None:
        self._vocabulary = vocabulary

    def fill(self, guides: Sequence[Guide], masks: Words) -> None:
        """Write the masks of the guides' next tokens, [num_guides, words] int32; they stay until the next `take`."""
        doubtful: dict[int, bool] = {}  # where the text may end; whether the engine filled the mask
        for place, guide in enumerate(guides):
            guide.seen = masks, place
        for kind, places in _kinds(guides, range(len(guides))).items():
            if kind is None:
                masks[places] = self._vocabulary.free_mask
                doubtful.update(dict.fromkeys(places, True))
            else:
                doubtful.update(kind.fill_many([guides[place].matcher for place in places], masks, places))
        self._vocabulary.clear_ends(masks)
        for place, filled in doubtful.items():
            guides[place].let_end(masks[place], filled)
        for place, guide in enumerate(guides):
            if guide.is_tight:
                guide.tighten(masks[place])

    def take(self, guides: Sequence[Guide], tokens: Sequence[int]) -> list[int]:
        """The tokens that stand in place of the sampled `tokens`. Guides may fail."""
        standing = list(tokens)
        steps: dict[int, int | None] = {}  # that matchers have still to go; None: it has moved
        others: list[int] = []
        for place, (guide, token) in enumerate(zip(guides, tokens)):
            if guide.affords(token):
                steps[place] = token
            else:
                others.append(place)
        if others:
            steps.update(_judged(guides, others, standing, self._vocabulary))
        for kind, places in _kinds(guides, [place for place, token in steps.items() if token is not None]).items():
            accepted = kind.accept_many([guides[place].matcher for place in places], [steps[place] for place in places])
            if not all(accepted):
                for place, stands in zip(places, accepted):
                    if not stands:
                        guides[place].failure = BROKEN
        return standing


def _judged(
    guides: Sequence[Guide], places: list[int], standing: list[int], vocabulary: VocabularyTable
) -> dict[int, int | None]:
    """Settle which tokens stand, for guides that could not say at once. Gives the steps of those that go on."""
    steps: dict[int, int | None] = {}
    unsure: list[int] = []
    for place in places:
        verdict = guides[place].weigh(standing[place])
        if verdict is None:
            unsure.append(place)
            continue
        standing[place], moves = verdict
        if moves:
            steps[place] = standing[place]
    if unsure:
        for place, row in zip(unsure, _masks_beyond([guides[place] for place in unsure], vocabulary.words)):
            standing[place] = guides[place].search(standing[place], row)
            steps[place] = None
    return steps


def _masks_beyond(guides: Sequence[Guide], words: int) -> "list[Words | None]":
    """Masks behind tokens that there may be no room for; None where the engine gave up."""
    masks = np.empty((len(guides), words), dtype=np.int32)
    rows: list[Words | None] = list(masks)
    kinds: dict[Any, list[int]] = {}
    for place, guide in enumerate(guides):
        kinds.setdefault(type(guide.beyond), []).append(place)
    for kind, places in kinds.items():
        for place, filled in kind.fill_many([guides[place].beyond for place in places], masks, places).items():
            if not filled:
                rows[place] = None
    return rows


def _kinds(guides: Sequence[Guide], places: Iterable[int]) -> dict[Any, list[int]]:
    """Places by the engine's class of their guides' matchers; of guides that have none yet, under None."""
    kinds: dict[Any, list[int]] = {}
    for place in places:
        matcher = guides[place].matcher
        kinds.setdefault(None if matcher is None else type(matcher), []).append(place)
    return kinds
