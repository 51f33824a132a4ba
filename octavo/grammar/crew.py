"""Who follows the constraints of a step: this process some, and where cores are to spare beside a GPU, others the rest.

Python runs one thread at a time, and a token's way through a constraint takes it some 25 us: 64 of them take longer
than a small model's step. So guides beyond the first few are dealt out to processes of their own (grammar/follower.py).
They take the tokens that were drawn and fill the masks behind them at once, while the device computes. If one is lost,
all its guides are made anew here and take again what they had taken.
"""

import contextlib
import itertools
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

import octavo
from octavo.grammar import alone
from octavo.grammar.away import Away, Link, pair
from octavo.grammar.base import Words
from octavo.grammar.child import THREADS
from octavo.grammar.compiled import Compiled
from octavo.grammar.follower import shared_rows
from octavo.grammar.frames import Broken, Setup, frame, write_all
from octavo.grammar.guide import Guide
from octavo.grammar.orders import Begin
from octavo.grammar.spec import GrammarSpec
from octavo.grammar.together import Together
from octavo.grammar.vocabulary import VocabularyTable

log = logging.getLogger(__name__)

FEW = 8  # guides that one process has sooner done than others have begun
MOST = 256  # guides of a follower
MOST_FOLLOWERS = 7
STARTS = 3
BUFFERS = 3  # of masks: those seen last, those that the device reads, those that are filled
FEWEST = 16  # rows of a buffer

Anyone = Guide | Away


def crew_size(cores: int) -> int:
    """Followers beside an engine that has so many cores."""
    return max(0, min(MOST_FOLLOWERS, cores // 2 - 1))


class Crew:
    """`fill` before a step's tokens are drawn and `take` with them, each with the guides of its step. All from one
    thread."""

    def __init__(
        self, setup: Setup, vocabulary: VocabularyTable, memory: "Callable[[int], Words] | None" = None, size: int = 0
    ) -> None:
        """`memory` gives so many int32 for masks; `size`: followers."""
        self._setup = setup
        self._vocabulary = vocabulary
        self._together = Together(vocabulary)
        self._buffers = _Buffers(memory or _plain, vocabulary.words)
        self._size = size if hasattr(os, "memfd_create") else 0
        self._here: set[Guide] = set()
        self._links: list[Link] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._numbers = itertools.count()
        self._parted: _Parted | None = None

    # --- guides come and go

    def start(self) -> None:
        """Start the followers, unless they are there. They are given nothing before they say that they are ready."""
        if self._process is None and self._size and self._starts < STARTS:
            self._starts += 1
            try:
                self._spawn()
            except OSError as error:
                self._lose(error)

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
            guide.link.look(guide)
        except Broken as error:
            self._lose(error)
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

    def rank(self, guide: Anyone) -> int:
        """By which a step's guides are to stand: masks of one process lie side by side."""
        return -1 if isinstance(guide, Guide) or guide.here is not None else guide.link.place

    # --- steps

    def fill(self, guides: Sequence[Anyone]) -> Words:
        """Masks of the guides' next tokens, [num_guides, words] int32; to be read until the second `fill` from here."""
        masks = self._buffers.take(len(guides))
        try:
            self._fill(self._part(guides), masks)
        except Broken as error:
            self._lose(error)
            self._fill(self._part(guides), masks)  # all are here now
        return masks

    def take(self, guides: Sequence[Anyone], tokens: Sequence[int]) -> list[int]:
        """The tokens that stand in place of the sampled `tokens`. Guides may fail, here and in `fill`."""
        parted = self._part(guides)
        standing = list(tokens)
        try:
            for link, places in parted.away:
                link.take(_of(guides, places), [tokens[place] for place in places])
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

    def _fill(self, parted: "_Parted", masks: Words) -> None:
        guides = parted.guides
        for link, places in parted.away:
            link.fill(_of(guides, places))
        self._fill_here(parted, masks)
        for link, places in parted.away:
            _copy(link.rows, link.places(_of(guides, places)), masks, places)

    def _fill_here(self, parted: "_Parted", masks: Words) -> None:
        places = parted.places
        if places and places[-1] == len(places) - 1:
            self._together.fill(parted.here, masks[: len(places)])
        elif places:
            rows = self._buffers.spare(len(places))
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
        if self._process is None:
            self.start()
        try:
            for link in self._links:
                if not link.backends:
                    link.look()
        except Broken as error:
            self._lose(error)
        able = [link for link in self._links if backend in link.backends]
        if len(able) < len(self._links) or not able:  # they come one after the other
            return None
        least = min(able, key=lambda link: len(link.guides))
        found = next((link for link in able if len(link.guides) < FEW), least)
        return found if len(found.guides) < MOST else None

    def _spawn(self) -> None:
        words = self._vocabulary.words
        memory = os.memfd_create("octavo-masks")
        pairs = [pair() for _ in range(self._size)]
        given = [memory, *(descriptor for _, descriptor in pairs)]
        try:
            os.ftruncate(memory, self._size * MOST * words * 4)
            self._links = [
                Link(at, stream, shared_rows(memory, at, MOST, words)) for at, (stream, _) in enumerate(pairs)
            ]
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", "octavo.grammar.follower", str(MOST), *map(str, given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=given,
                env={**os.environ, "PYTHONPATH": _python_path(), **dict.fromkeys(THREADS, "1")},
                bufsize=0,
            )
        finally:
            for descriptor in given:
                os.close(descriptor)
        threading.Thread(target=_tell, args=(process, self._setup), name="octavo-crew", daemon=True).start()

    def _lose_in(self, guides: Sequence[Anyone], error: Broken) -> "_Parted":
        self._lose(error)
        return self._part(guides)

    def _lose(self, error: Exception | None = None) -> None:
        """End all followers, as when one is lost. Their guides are here afterwards."""
        if error is not None:
            log.warning("the processes that follow constraints are ended: %s", error)
        links, self._links = self._links, []
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for link in links:
            link.close()
            for guide in link.guides.values():
                self._here.add(guide.come(alone.take))
            link.guides.clear()
        self._parted = None


@dataclass(frozen=True, slots=True)
class _Parted:
    """The guides of a step by who has them; places are theirs in the step."""

    guides: Sequence[Anyone]
    here: list[Guide]
    places: list[int]
    away: list[tuple[Link, list[int]]]

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


def _copy(rows: Words, sources: list[int], masks: Words, places: list[int]) -> None:
    """Rows to their places; most often both are one stretch."""
    count = len(places)
    first, begin = sources[0], places[0]
    if sources[-1] - first == places[-1] - begin == count - 1 and sorted(sources) == sources:
        masks[begin : begin + count] = rows[first : first + count]
    else:
        masks[places] = rows[sources]


class _Buffers:
    """Memory for masks that is used again."""

    def __init__(self, memory: "Callable[[int], Words]", words: int) -> None:
        self._memory = memory
        self._words = words
        self._rows: deque[Words] = deque(maxlen=BUFFERS)  # those that were used last are at the end
        self._spare = np.empty((0, words), dtype=np.int32)

    def take(self, count: int) -> Words:
        if len(self._rows) == BUFFERS and len(self._rows[0]) >= count:
            self._rows.rotate(-1)
        else:
            rows = max(FEWEST, 1 << (count - 1).bit_length())
            self._rows.append(self._memory(rows * self._words).reshape(rows, self._words))
        return self._rows[-1][:count]

    def spare(self, count: int) -> Words:
        """Rows that nobody reads but who has asked."""
        if len(self._spare) < count:
            self._spare = np.empty((count, self._words), dtype=np.int32)
        return self._spare[:count]


def _plain(length: int) -> Words:
    return np.empty(length, dtype=np.int32)


def _python_path() -> str:
    root = str(Path(octavo.__file__).parents[1])
    return os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)


def _tell(process: "subprocess.Popen[bytes]", setup: Setup) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # it has ended; its links say so
        write_all(process.stdin.fileno(), frame(msgspec.msgpack.encode(setup)))
