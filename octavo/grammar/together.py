"""All guides of a step at once: masks and moves, with the interpreter's lock given up once for many of them.

Most tokens stand without a look. Their guides are moved on and their next masks filled at once: by another thread,
where the engine says that this pays, while this one judges the others and its caller plans the next step.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from octavo.grammar.aside import Aside
from octavo.grammar.base import Matcher, Words
from octavo.grammar.guide import BROKEN, Guide
from octavo.grammar.vocabulary import VocabularyTable

BUFFERS = 3  # of masks: those seen last, those begun ahead, and those of a step that other guides are in
FEWEST = 16  # rows of a buffer

Doubtful = dict[int, bool]
"""Places whose guides have to say whether the text may end there; whether the engine filled the mask."""
Done = tuple[list[int], Doubtful]
"""Places whose token did not fit, and of the masks those in doubt."""


class Together:
    """`fill` before a step's tokens are drawn and `take` with them, each with the guides of its step."""

    def __init__(
        self,
        vocabulary: VocabularyTable,
        memory: "Callable[[int], Words] | None" = None,
        *,
        apart: bool | None = None,
    ) -> None:
        """`memory` gives so many int32 for masks; `apart`: whether another thread helps, None: as the engine says."""
        self._vocabulary = vocabulary
        self._memory = memory or _plain
        self._apart = apart
        self._buffers: deque[Words] = deque(maxlen=BUFFERS)  # the one that was used last is at the end
        self._idle: list[Aside[Done]] = []
        self._ahead: _Ahead | None = None

    def fill(self, guides: Sequence[Guide]) -> Words:
        """Masks of the guides' next tokens, [num_guides, words] int32; to be read until the second `take` from here."""
        masks, doubtful, missing = self._begun(guides)
        for place, guide in enumerate(guides):
            guide.seen = masks, place
        for kind, places in _kinds(guides, missing).items():
            if kind is None:
                masks[places] = self._vocabulary.free_mask
                doubtful.update(dict.fromkeys(places, True))
            else:
                doubtful.update(kind.fill_many(_matchers(guides, places), masks, places))
        self._vocabulary.clear_ends(masks)
        for place, filled in doubtful.items():
            guides[place].let_end(masks[place], filled)
        for place, guide in enumerate(guides):
            if guide.is_tight:
                guide.tighten(masks[place])
        return masks

    def take(self, guides: Sequence[Guide], tokens: Sequence[int]) -> list[int]:
        """The tokens that stand in place of the sampled `tokens`. Guides may fail, some of them in `fill` only, and are
        not to be asked anything before that."""
        self._land()
        standing = list(tokens)
        sure: dict[int, int | None] = {}
        others: list[int] = []
        for place, (guide, token) in enumerate(zip(guides, tokens)):
            if guide.affords(token):
                sure[place] = token
            else:
                others.append(place)
        apart = self._move(guides, sure, set())
        self._move(guides, _judged(guides, others, standing, self._vocabulary), apart)
        return standing

    def close(self) -> None:
        """End the threads."""
        self._land()
        for aside in self._idle:
            aside.close()

    def _move(self, guides: Sequence[Guide], steps: dict[int, int | None], apart: set[Any]) -> set[Any]:
        """Move matchers on by the tokens at their places, None where one has moved. Those of engines in `apart`, and
        of engines that would rather, elsewhere, with the masks behind them; gives these engines."""
        for kind, places in _kinds(guides, list(steps)).items():
            matchers, tokens = _matchers(guides, places), [steps[place] for place in places]
            if kind in apart or (kind.is_apart(len(places)) if self._apart is None else self._apart):
                apart.add(kind)
                ahead = self._ahead = self._ahead or _Ahead(guides, self._buffer(len(guides)))
                aside: Aside[Done] = self._idle.pop() if self._idle else Aside("octavo-masks")
                aside.begin(partial(_follow, kind, matchers, tokens, places, ahead.masks))
                ahead.under_way.append((aside, places))
            else:
                for place in _moved(kind, matchers, tokens, places):
                    guides[place].failure = BROKEN
        return apart

    def _land(self) -> "_Ahead | None":
        """What the last `take` has begun, done; it is given once."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        for aside, places in ahead.under_way:
            broken, doubtful = aside.result()
            self._idle.append(aside)
            ahead.filled.update(places)
            ahead.doubtful.update(doubtful)
            for place in broken:
                ahead.guides[place].failure = BROKEN
        return ahead

    def _begun(self, guides: Sequence[Guide]) -> tuple[Words, Doubtful, list[int]]:
        """Masks as far as they are there, those of them in doubt, and the places of the others."""
        ahead = self._land()
        if ahead is None:
            return self._buffer(len(guides)), {}, list(range(len(guides)))
        if ahead.guides == guides:
            return ahead.masks, ahead.doubtful, [place for place in range(len(guides)) if place not in ahead.filled]
        masks, doubtful, missing = self._buffer(len(guides)), {}, []
        before = {guide: place for place, guide in enumerate(ahead.guides) if place in ahead.filled}
        for place, guide in enumerate(guides):
            if guide not in before:
                missing.append(place)
                continue
            masks[place] = ahead.masks[before[guide]]
            if before[guide] in ahead.doubtful:
                doubtful[place] = ahead.doubtful[before[guide]]
        return masks, doubtful, missing

    def _buffer(self, count: int) -> Words:
        """Rows for masks, in memory that was used before."""
        if len(self._buffers) == BUFFERS and len(self._buffers[0]) >= count:
            self._buffers.rotate(-1)
        else:
            rows, words = max(FEWEST, 1 << (count - 1).bit_length()), self._vocabulary.words
            self._buffers.append(self._memory(rows * words).reshape(rows, words))
        return self._buffers[-1][:count]


def _plain(length: int) -> Words:
    return np.empty(length, dtype=np.int32)


class _Ahead:
    """Masks that are filled before they are asked for."""

    __slots__ = ("doubtful", "filled", "guides", "masks", "under_way")

    def __init__(self, guides: Sequence[Guide], masks: Words) -> None:
        self.guides = list(guides)
        self.masks = masks
        self.under_way: list[tuple[Aside[Done], list[int]]] = []
        self.filled: set[int] = set()
        self.doubtful: Doubtful = {}


def _follow(kind: Any, matchers: list[Matcher], tokens: list[int | None], places: list[int], masks: Words) -> Done:
    """What one engine does apart."""
    broken = _moved(kind, matchers, tokens, places)
    return broken, kind.fill_many(matchers, masks, places)


def _moved(kind: Any, matchers: list[Matcher], tokens: list[int | None], places: list[int]) -> list[int]:
    """Move matchers of one engine; the places of those that cannot."""
    going = [index for index, token in enumerate(tokens) if token is not None]
    if len(going) < len(places):
        matchers, tokens = [matchers[index] for index in going], [tokens[index] for index in going]
    accepted = kind.accept_many(matchers, tokens)
    return [] if all(accepted) else [places[index] for index, stands in zip(going, accepted) if not stands]


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


def _matchers(guides: Sequence[Guide], places: Sequence[int]) -> list[Any]:
    return [guides[place].matcher for place in places]


def _kinds(guides: Sequence[Guide], places: list[int]) -> dict[Any, list[int]]:
    """Places by the engine's class of their guides' matchers; of guides that have none yet, under None."""
    kinds: dict[Any, list[int]] = {}
    for place in places:
        matcher = guides[place].matcher
        kinds.setdefault(None if matcher is None else type(matcher), []).append(place)
    return kinds
