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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

import octavo
from octavo.grammar import alone
from octavo.grammar.away import MOST, Away, Link, pair
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
MOST_FOLLOWERS = 6
STARTS = 3
BUFFERS = 3  # of masks: those seen last, those that the device reads, those that are filled
FEWEST = 16  # rows of a buffer
SHARED = 256  # of one in shared memory

Anyone = Guide | Away


class HostMemory(Protocol):
    """Memory from which masks reach the device in one copy, without anybody's waiting for it."""

    def host_memory(self, length: int) -> Words:
        """So many int32 of it."""
        ...

    def pin(self, array: Words) -> bool:
        """Make it of memory that is there already; False: that cannot be."""
        ...

    def unpin(self, array: Words) -> None:
        """Undo that, when no copy is under way."""
        ...


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
        self._memory = memory or _Plain()
        self._buffers = _Buffers(self._memory, vocabulary.words)
        self._shared: _Shared | None = None  # made with the first followers
        self._ahead: tuple[_Parted, Words] | None = None  # where the masks of a step's guides are being filled
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
        masks, base = self._buffers.take(len(parted.guides))
        self._ahead = None
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
        shared = self._shared = self._shared or self._share()
        pairs = [pair() for _ in range(self._size)]
        given = [shared.descriptor, *(descriptor for _, descriptor in pairs)]
        self._links = [Link(at, stream, shared.first_of(at)) for at, (stream, _) in enumerate(pairs)]
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", "octavo.grammar.follower", str(len(shared.rows)), *map(str, given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=given,
                env={**os.environ, "PYTHONPATH": _python_path(), **dict.fromkeys(THREADS, "1")},
                bufsize=0,
            )
        finally:
            for _, descriptor in pairs:
                os.close(descriptor)
        threading.Thread(target=_tell, args=(process, self._setup), name="octavo-crew", daemon=True).start()

    def _share(self) -> "_Shared":
        shared = _Shared(self._size, self._vocabulary.words)
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


class _Shared:
    """Memory that followers fill masks into, [rows, words]: first the buffers, then each one's own rows."""

    def __init__(self, followers: int, words: int) -> None:
        rows = BUFFERS * SHARED + followers * MOST
        self.descriptor = os.memfd_create("octavo-masks")
        os.ftruncate(self.descriptor, rows * words * 4)
        self.rows = shared_rows(self.descriptor, rows, words)
        self.buffers = self.rows[: BUFFERS * SHARED]

    @staticmethod
    def first_of(place: int) -> int:
        return BUFFERS * SHARED + place * MOST

    def close(self) -> None:
        os.close(self.descriptor)


class _Buffers:
    """Memory for masks that is used again."""

    def __init__(self, memory: HostMemory, words: int) -> None:
        self._memory = memory
        self._words = words
        self._rows: deque[Words] = deque(maxlen=BUFFERS)  # those that were used last are at the end
        self._shared: Words | None = None
        self._turn = 0

    def share(self, rows: Words) -> None:
        """Use these rows, of BUFFERS times SHARED, wherever they suffice."""
        self._shared = rows

    def take(self, count: int) -> tuple[Words, int | None]:
        """Rows, and where they begin in shared memory; None: they are not in it."""
        if self._shared is not None and count <= SHARED:
            self._turn = (self._turn + 1) % BUFFERS
            base = self._turn * SHARED
            return self._shared[base : base + count], base
        if len(self._rows) == BUFFERS and len(self._rows[0]) >= count:
            self._rows.rotate(-1)
        else:
            rows = max(FEWEST, 1 << (count - 1).bit_length())
            self._rows.append(self._memory.host_memory(rows * self._words).reshape(rows, self._words))
        return self._rows[-1][:count], None


class _Plain:
    """Any memory."""

    def host_memory(self, length: int) -> Words:
        return np.empty(length, dtype=np.int32)

    def pin(self, array: Words) -> bool:
        del array
        return True

    def unpin(self, array: Words) -> None:
        """It is as it was."""


def _python_path() -> str:
    root = str(Path(octavo.__file__).parents[1])
    return os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)


def _tell(process: "subprocess.Popen[bytes]", setup: Setup) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # it has ended; its links say so
        write_all(process.stdin.fileno(), frame(msgspec.msgpack.encode(setup)))
