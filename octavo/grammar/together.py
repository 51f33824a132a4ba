"""Many guides at once: masks and moves of one step, with the interpreter's lock given up once for all of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.grammar.base import Matcher, Words
from octavo.grammar.guide import Guide
from octavo.grammar.vocabulary import VocabularyTable


def fill(guides: Sequence[Guide], masks: Words, vocabulary: VocabularyTable) -> None:
    """Write the masks of the guides' next tokens. masks: [num_guides, words], int32."""
    matchers = [guide.matcher for guide in guides]
    filled = [True] * len(guides)
    for kind, places in _kinds(matchers).items():
        for place, done in zip(places, kind.fill_many([matchers[place] for place in places], masks, places)):
            filled[place] = done
    for place, matcher in enumerate(matchers):
        if matcher is None:
            masks[place] = vocabulary.free_mask
    vocabulary.clear_ends(masks)
    some: list[bool] = np.any(masks, axis=1).tolist()
    for guide, row, done, any_token in zip(guides, masks, filled, some):
        guide.let_end(row, done, not any_token)


def take(guides: Sequence[Guide], tokens: Sequence[int]) -> list[int]:
    """The tokens that stand in place of the sampled `tokens`. Guides may fail."""
    moving = [guide.weigh(token) for guide, token in zip(guides, tokens)]
    accepted = [True] * len(guides)
    for kind, places in _kinds(moving).items():
        moves = kind.accept_many([moving[place] for place in places], [tokens[place] for place in places])
        for place, stands in zip(places, moves):
            accepted[place] = stands
    return [guide.settle(token, stands) for guide, token, stands in zip(guides, tokens, accepted)]


def _kinds(matchers: Sequence[Matcher | None]) -> dict[Any, list[int]]:
    """Places of the matchers of each engine's class."""
    found: dict[Any, list[int]] = {}
    for place, matcher in enumerate(matchers):
        if matcher is not None:
            found.setdefault(type(matcher), []).append(place)
    return found
