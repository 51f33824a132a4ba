"""Who follows the constraints of a step: this process some, and where cores are to spare beside a GPU, others the rest.

Python runs one thread at a time, and a token's way through a constraint takes it some 25 us: 64 of them take longer
than a small model's step. So guides beyond the first few are dealt out to processes of their own (grammar/follower.py).
They take the tokens that were drawn and fill the masks behind them at once, while the device computes. If one is lost,
all its guides are made anew here and take again what they had taken.
"""

import itertools
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from octavo.grammar.away import Away, Link
from octavo.grammar.base import Words
from octavo.grammar.compiled import Compiled
from octavo.grammar.enlisted import Enlisted
from octavo.grammar.frames import Broken, Setup
from octavo.grammar.guide import Guide
from octavo.grammar.orders import Begin
from octavo.grammar.rows import OWN, Buffers, HostMemory, Plain, Shared
from octavo.grammar.spec import GrammarSpec
from octavo.grammar.together import Together
from octavo.grammar.vocabulary import VocabularyTable

log = logging.getLogger(__name__)

FEW = 4  # guides that one process has sooner done than others have begun
MOST_FOLLOWERS = 6
STARTS = 3
BEGIN_S = 1.0  # for a follower to make a guide, which may have to wait for dear ones; then it stays here

Anyone = Guide | Away


def crew_size(cores: int) -> int:
    """Followers beside an engine that has so many cores."""
    return 0 if cores < 4 else min(MOST_FOLLOWERS, cores // 3)


class Crew:
    """`fill` before a step's tokens are drawn and `take` with them, each with the guides of its step. All from one
    thread."""

    def __init__(
        self, setup: Setup, vocabulary: VocabularyTable, memory: HostMemory | None = None, size: int = 0
    ) -> None:
        """`memory`: for masks; `size`: followers."""
        self._setup = setup
        self._vocabulary = vocabulary
        self._together = Together(vocabulary)
        self._memory = memory or Plain()
        self._buffers = Buffers(self._memory, vocabulary.words)
        self._shared: Shared | None = None  # made with the first followers
        self._ahead: tuple[_Parted, Words] | None = None  # where the masks of a step's guides are being filled
        self._size = size if hasattr(os, "memfd_create") else 0
        self._here: set[Guide] = set()
        self._enlisted: Enlisted | None = None
        self._starts = 0
        self._numbers = itertools.count()
        self._parted: _Parted | None = None

    # --- guides come and go

    def start(self) -> None:
        """Start the followers, unless they are there. They are given nothing before they say that they are ready."""
        if self._enlisted is None and self._size and self._starts < STARTS:
            self._starts += 1
            try:
                self._shared = self._shared or self._share()
                self._enlisted = Enlisted(self._size, self._shared, self._setup)
                log.info("%d processes will help to follow constraints", self._size)
            except OSError as error:
                self._lose(error)

    @property
    def is_complete(self) -> bool:
        """Whether all followers that are to come take guides."""
        self._hear(self._links)
        return len(self._links) == self._size and all(link.backends for link in self._links)

    def add(
        self,
        guide: Guide,
        compiled: Compiled,
        spec: GrammarSpec,
        ends: frozenset[int],
        limit: int,
        taken: Sequence[int],
    ) -> Anyone:
        """Who follows it from here on: the guide itself, or a follower. `taken`: tokens that it has taken."""
        link = self._choose(compiled.recipe.backend)
        if link is None:
            self._here.add(guide)
            return guide
        away = Away(
            link, next(self._numbers), guide.param, lambda: Guide(compiled, spec, self._vocabulary, ends, limit), taken
        )
        recipe = msgspec.msgpack.encode(compiled.recipe)
        order = Begin(away.number, recipe, spec, sorted(ends), limit, list(taken))
        try:
            link.begin(away, order)
        except Broken as error:
            self._lose(error)
        return away

    def has_begun(self, guide: Anyone) -> bool:
        """Whether a step may have it."""
        if isinstance(guide, Guide) or guide.begun or guide.here is not None:
            return True
        try:
            guide.link.look()
        except Broken as error:
            self._lose(error)
            return True
        if guide.refused or time.monotonic() - guide.since_s > BEGIN_S:
            guide.link.leave(guide)
            self._here.add(guide.come())
        return guide.begun or guide.here is not None

    def remove(self, guide: Anyone) -> None:
        """It has done its work."""
        if isinstance(guide, Away):
            guide.link.leave(guide)
            guide = guide.here or guide
        if isinstance(guide, Guide):
            self._here.discard(guide)

    def close(self) -> None:
        """End the followers."""
        self._size = 0
        self._lose()
        if self._shared is not None:
            self._memory.unpin(self._shared.buffers)
            self._shared.close()
            self._shared = None

    def rank(self, guide: Anyone) -> int:
        """By which a step's guides are to stand: masks of one process lie side by side."""
        return -1 if isinstance(guide, Guide) or guide.here is not None else guide.link.place

    # --- steps

    def fill(self, guides: Sequence[Anyone]) -> Words:
        """Masks of the guides' next tokens, [num_guides, words] int32; to be read until the second `fill` from here."""
        try:
            return self._fill(self._part(guides))
        except Broken as error:
            self._lose(error)
            return self._fill(self._part(guides))  # all are here now

    def take(self, guides: Sequence[Anyone], tokens: Sequence[int]) -> list[int]:
        """The tokens that stand in place of the sampled `tokens`. Guides may fail, here and in `fill`."""
        parted = self._part(guides)
        standing = list(tokens)
        try:
            self._order(parted, tokens)
        except Broken as error:
            parted = self._lose_in(guides, error)
        if parted.here:
            self._take_here(parted, standing)
        try:
            stood = [link.stood(_of(guides, places)) for link, places in parted.away]
        except Broken as error:
            away = {place for _, places in parted.away for place in places}
            self._take_here(self._lose_in(guides, error).of(away), standing)
            return standing
        for (_, places), found in zip(parted.away, stood):
            for place, token in zip(places, found):
                standing[place] = token
                guides[place].tokens.append(token)  # type: ignore[union-attr]
        return standing

    def _order(self, parted: "_Parted", tokens: Sequence[int]) -> None:
        """Have followers take their tokens and fill the masks of the next step, if that has the same guides."""
        self._ahead, base = None, None
        for link in self._links:
            link.settle()  # whoever was not in the last step may still fill masks of the one before
        if parted.away and parted.is_even:
            masks, base = self._buffers.take(len(tokens))
            self._ahead = None if base is None else (parted, masks)
        self._forget_masks()
        for link, places in parted.away:
            first = None if base is None else base + places[0]
            link.take(_of(parted.guides, places), [tokens[place] for place in places], first)

    def _fill(self, parted: "_Parted") -> Words:
        if self._ahead is not None and self._ahead[0] is parted:
            masks = self._ahead[1]
            self._fill_here(parted, masks)
            for link, _ in parted.away:
                link.settle()
            return masks
        self._ahead = None
        for link in self._links:
            if all(link is not other for other, _ in parted.away):
                link.settle()  # what it fills lies in memory that is used again
        masks, base = self._buffers.take(len(parted.guides))
        away = [(link, places, _of(parted.guides, places)) for link, places in parted.away]
        for link, _, guides in away:
            link.fill(guides)
        self._fill_here(parted, masks)
        rows = [(link.places(guides), places) for link, places, guides in away]
        for found, places in rows:
            assert self._shared is not None
            masks[places] = self._shared.rows[found]
        self._forget_masks()
        if base is not None and parted.is_even:
            for link, places, guides in away:
                link.lie(guides, base + places[0])
        return masks

    def _forget_masks(self) -> None:
        """Those that were filled before, whose memory is used again."""
        for link in self._links:
            link.lie((), None)

    def _fill_here(self, parted: "_Parted", masks: Words) -> None:
        places = parted.places
        if places and places[-1] == len(places) - 1:
            self._together.fill(parted.here, masks[: len(places)])
        elif places:
            rows = np.empty((len(places), self._vocabulary.words), dtype=np.int32)
            self._together.fill(parted.here, rows)
            masks[places] = rows

    def _take_here(self, parted: "_Parted", standing: list[int]) -> None:
        tokens = [standing[place] for place in parted.places]
        for place, token in zip(parted.places, self._together.take(parted.here, tokens)):
            standing[place] = token

    def _part(self, guides: Sequence[Anyone]) -> "_Parted":
        if self._parted is None or self._parted.guides is not guides:
            self._parted = _parted(guides)
        return self._parted

    # --- followers

    def _choose(self, backend: str) -> Link | None:
        """Whom a guide goes to; None: it stays."""
        if len(self._here) < FEW:
            return None
        self.start()
        self._hear([link for link in self._links if not link.backends])
        able = [link for link in self._links if backend in link.backends]
        if len(able) < len(self._links) or not able:  # they come one after the other
            return None
        least = min(able, key=lambda link: len(link.guides))
        found = next((link for link in able if len(link.guides) < FEW), least)
        return found if len(found.guides) < OWN else None

    def _hear(self, links: Sequence[Link]) -> None:
        """What they have said unasked."""
        try:
            for link in links:
                link.look()
        except Broken as error:
            self._lose(error)

    @property
    def _links(self) -> list[Link]:
        return [] if self._enlisted is None else self._enlisted.links

    def _share(self) -> Shared:
        shared = Shared(self._size, self._vocabulary.words)
        if not self._memory.pin(shared.buffers):
            shared.close()
            raise OSError("memory for masks cannot be pinned")
        self._buffers.share(shared.buffers)
        return shared

    def _lose_in(self, guides: Sequence[Anyone], error: Broken) -> "_Parted":
        self._lose(error)
        return self._part(guides)

    def _lose(self, error: Exception | None = None) -> None:
        """End all followers, as when one is lost. Their guides are here afterwards."""
        if error is not None:
            log.warning("the processes that follow constraints are ended: %s", error)
        enlisted, self._enlisted = self._enlisted, None
        if enlisted is not None:
            enlisted.end()
            for guide in [guide for link in enlisted.links for guide in link.guides.values()]:
                self._here.add(guide.come())
        self._parted = self._ahead = None


@dataclass(frozen=True, slots=True)
class _Parted:
    """The guides of a step by who has them; places are theirs in the step."""

    guides: Sequence[Anyone]
    here: list[Guide]
    places: list[int]
    away: list[tuple[Link, list[int]]]

    @property
    def is_even(self) -> bool:
        """Whether the places of each follower's are one stretch."""
        return all(places == list(range(places[0], places[0] + len(places))) for _, places in self.away)

    def of(self, some: set[int]) -> "_Parted":
        """Those that are here, at some of the places."""
        chosen = [(guide, place) for guide, place in zip(self.here, self.places) if place in some]
        return _Parted(self.guides, [guide for guide, _ in chosen], [place for _, place in chosen], [])


def _parted(guides: Sequence[Anyone]) -> _Parted:
    here: list[Guide] = []
    places: list[int] = []
    away: dict[Link, list[int]] = {}
    for place, guide in enumerate(guides):
        at = guide if isinstance(guide, Guide) else guide.here
        if at is not None:
            here.append(at)
            places.append(place)
        else:
            away.setdefault(guide.link, []).append(place)  # type: ignore[union-attr]
    return _Parted(guides, here, places, list(away.items()))


def _of(guides: Sequence[Anyone], places: Sequence[int]) -> list[Away]:
    return [guides[place] for place in places]  # type: ignore[misc]
