"""``python -m octavo.grammar.follower``: follows constraints for an engine, beside its process.

It loads the engine of grammars once and forks, so that all followers share its tables. Each has a socket of its own, by
which orders come, and fills masks into memory that its engine has too. Started by grammar/crew.py.
"""

import contextlib
import gc
import os
import select
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from octavo.grammar import alone
from octavo.grammar.base import Backend, Form, Words
from octavo.grammar.cache import ByteCache
from octavo.grammar.compiled import Compiled, Recipe, build
from octavo.grammar.fork import die_with_parent
from octavo.grammar.frames import Broken, Setup, frame, read_frame, write_all
from octavo.grammar.guide import Guide
from octavo.grammar.orders import Answer, Begin, Begun, Fill, Filled, Leave, Order, Ready, Stood, Take
from octavo.grammar.registry import BACKENDS, choices
from octavo.grammar.rows import mapped
from octavo.grammar.together import Together
from octavo.grammar.vocabulary import VocabularyTable

CACHE_BYTES = 32 << 20
AWAKE_S = 0.002  # a small model's step


class Follower:
    """One process's guides. `rows` [rows, words]: the shared memory; `stream`: the socket's descriptor."""

    def __init__(self, vocabulary: VocabularyTable, backends: dict[str, Backend], rows: Words, stream: int) -> None:
        self._vocabulary = vocabulary
        self._backends = backends
        self._rows = rows
        self._stream = stream
        self._poll = select.poll()
        self._poll.register(stream, select.POLLIN)
        self._together = Together(vocabulary)
        self._guides: dict[int, Guide] = {}
        self._left: set[int] = set()  # before they were made
        self._built: ByteCache[Compiled] = ByteCache(CACHE_BYTES)
        self._builder = ThreadPoolExecutor(1, "octavo-build")  # which gives the interpreter's lock up
        self._saying = threading.Lock()

    def serve(self) -> None:
        """Until the stream ends, which raises Broken."""
        orders = msgspec.msgpack.Decoder(Order)
        self._say(Ready(list(self._backends)))
        while True:
            order = orders.decode(read_frame(self._stream))
            self._obey(order)
            if isinstance(order, Take):
                self._stay_awake()

    def _stay_awake(self) -> None:
        """Until the next order, if it comes soon: to fall asleep and be woken takes longer than a few tokens."""
        end = time.monotonic() + AWAKE_S
        while time.monotonic() < end and not self._poll.poll(0):
            pass

    def _obey(self, order: Order) -> None:
        match order:
            case Take(numbers, tokens, first):
                guides = self._found(numbers)
                standing = self._together.take(guides, tokens)
                self._say(Stood(standing, _failures(guides)))
                self._fill(guides, first)
            case Fill(numbers, first):
                self._fill(self._found(numbers), first)
            case Begin():
                self._builder.submit(self._begin, order)
            case Leave(numbers):
                self._left.update(number for number in numbers if self._guides.pop(number, None) is None)

    def _found(self, numbers: list[int]) -> list[Guide]:
        return [self._guides[number] for number in numbers]

    def _fill(self, guides: list[Guide], first: int) -> None:
        self._together.fill(guides, self._rows[first : first + len(guides)])
        self._say(Filled(_failures(guides)))

    def _begin(self, order: Begin) -> None:
        there = False
        with contextlib.suppress(Exception):  # then the engine follows it itself, and finds out
            guide = Guide(
                self._compiled(order.recipe), order.spec, self._vocabulary, frozenset(order.ends), order.limit
            )
            there = all(alone.take(guide, token) == token for token in order.tokens)
            if there:
                self._guides[order.number] = guide
        if order.number in self._left:
            self._left.discard(order.number)
            self._guides.pop(order.number, None)
        self._say(Begun(order.number, there))

    def _compiled(self, data: bytes) -> Compiled:
        known = self._built.get(data)
        if known is None:
            recipe = msgspec.msgpack.decode(data, type=Recipe)
            known = build(recipe, self._backends[recipe.backend], self._vocabulary)
            self._built.put(data, known, known.num_bytes)
        return known

    def _say(self, answer: Answer) -> None:
        with self._saying:
            write_all(self._stream, frame(msgspec.msgpack.encode(answer)))


def _failures(guides: list[Guide]) -> dict[int, str]:
    return {place: guide.failure for place, guide in enumerate(guides) if guide.failure is not None}


def main() -> int:
    """Until the streams end. The arguments: rows of the memory, its descriptor, then each one's socket's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
    rows, memory, *streams = map(int, sys.argv[1:])
    try:
        setup = msgspec.msgpack.decode(read_frame(0), type=Setup)
    except Broken:
        return 0
    vocabulary = VocabularyTable(setup.vocabulary, setup.width)
    vocabulary.warm()
    backends: dict[str, Backend] = {name: BACKENDS.get(name)(vocabulary) for name in choices("auto")[:1]}
    for backend in backends.values():
        backend.compile(Form("regex", "a"))
    gc.collect()
    gc.freeze()  # what is there now stays shared
    mine = 0
    for place in range(1, len(streams)):
        parent = os.getpid()
        if not os.fork():
            die_with_parent()
            if os.getppid() != parent:
                return 0
            mine = place
            break
    for place, stream in enumerate(streams):
        if place != mine:
            os.close(stream)
    with contextlib.suppress(Broken, OSError):
        Follower(vocabulary, backends, mapped(memory, rows, vocabulary.words), streams[mine]).serve()
    os._exit(0)  # nothing here is worth an orderly end


if __name__ == "__main__":
    sys.exit(main())
