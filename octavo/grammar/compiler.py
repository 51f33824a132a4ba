"""Compiler: constraints compiled beside the engine's loop, tried in a process of their own first, and kept."""

import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from msgspec.structs import replace

from octavo.base.errors import UserError
from octavo.base.wire import Vocabulary
from octavo.grammar.base import Backend, Form
from octavo.grammar.cache import ByteCache
from octavo.grammar.child import MEMORY_BYTES, Child
from octavo.grammar.compiled import Compiled, Recipe, build
from octavo.grammar.frames import PATIENCE_S, Setup, Verdict
from octavo.grammar.registry import BACKENDS, choices
from octavo.grammar.spec import GrammarSpec
from octavo.grammar.vocabulary import VocabularyTable

CACHE_BYTES = 128 << 20
THREADS = 32  # constraints that are on their way at once; each thread only waits, most of the time
REFUSAL_BYTES = 1024
REST_S = 3.0
_LISTING = re.compile(r"\s+\d+ \| .*", re.DOTALL)  # llguidance shows lines of a grammar that the caller never wrote


class Passing(Exception):
    """A refusal that is not to be kept: another time it may go well."""

    def __init__(self, error: UserError) -> None:
        super().__init__()
        self.error = error


def no_end(spec: GrammarSpec) -> UserError:
    """The refusal of a constraint for which no whole text is known."""
    return UserError("structured output: no text was found that fits the constraint", param=spec.param)


class Compiler:
    """Over one vocabulary. `width`: of the model's logits."""

    def __init__(self, vocabulary: Vocabulary, width: int, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.table = VocabularyTable(vocabulary, width)
        self.cache: ByteCache[Compiled | UserError] = ByteCache(cache_bytes)
        self.setup = Setup(vocabulary, width, MEMORY_BYTES)
        self.child = Child(self.setup)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="octavo-grammar")
        self._backends: dict[str, Backend] = {}
        self._building = threading.Lock()  # of backends
        self._lock = threading.Lock()
        self._waiting: dict[GrammarSpec, Future[Compiled]] = {}
        self._later: threading.Timer | None = None

    def warm(self) -> None:
        """Build what the first engine needs once, now: its table of tokens holds the interpreter up for a while. The
        process that tries constraints out follows when the server has come to rest."""
        for name in choices("auto")[:1]:
            self._threads.submit(self._backend, name)
            self._later = threading.Timer(REST_S, self.child.warm, (name,))
            self._later.daemon = True
            self._later.start()

    def submit(self, spec: GrammarSpec) -> "Future[Compiled]":
        """The compiled constraint, at once if it is known. The future raises UserError for what is refused."""
        key = spec.alone
        known = self._known(key)
        if known is not None:
            return _done(known)
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting is not None:
                return waiting
            deadline_s = time.monotonic() + PATIENCE_S
            waiting = self._waiting[key] = self._threads.submit(self._compile, key, deadline_s)
        # Outside of the lock: of a future that is done already, the callback runs here and now.
        waiting.add_done_callback(lambda _: self._forget(key))
        return waiting

    def close(self) -> None:
        """End the process and the threads."""
        if self._later is not None:
            self._later.cancel()
        self.child.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _known(self, key: GrammarSpec) -> Compiled | UserError | None:
        """Where an end is known, it makes no difference whether it is insisted on."""
        found = self.cache.get(key)
        if found is None:
            other = self.cache.get(replace(key, finish_within_budget=not key.finish_within_budget))
            found = other if isinstance(other, Compiled) and other.opening is not None else None
        return found

    def _forget(self, key: GrammarSpec) -> None:
        with self._lock:
            self._waiting.pop(key, None)

    def _compile(self, spec: GrammarSpec, deadline_s: float) -> Compiled:
        try:
            compiled = self._first_that_can(spec, deadline_s)
        except Passing as passing:
            raise passing.error from None
        except UserError as error:
            if error.status == UserError.status:  # not one that says to try again
                self.cache.put(spec, error, REFUSAL_BYTES + 4 * len(spec.source))
            raise
        self.cache.put(spec, compiled, compiled.num_bytes)
        return compiled

    def _first_that_can(self, spec: GrammarSpec, deadline_s: float) -> Compiled:
        first: Verdict | None = None
        for name in choices(spec.backend):
            verdict = self.child.judge(name, spec, deadline_s)
            if verdict.error is None:
                if spec.must_end and verdict.opening is None:
                    raise no_end(spec)
                return self._build(name, verdict)
            first = first or verdict
            # Of expressions and grammars the first engine knows all that can be enforced.
            if not verdict.refused or not spec.kind.startswith("json"):
                break
        if first is None:
            raise UserError("no grammar engine is installed", param=spec.param)
        reason = _LISTING.sub("", first.error or "")
        error = UserError(f"structured output: {reason}", param=first.param or spec.param)
        raise Passing(error) if first.passing else error

    def _build(self, name: str, verdict: Verdict) -> Compiled:
        form, known = verdict.form, verdict.closings
        assert form is not None
        assert known is not None
        return build(Recipe(name, form, known, verdict.opening), self._backend(name), self.table)

    def _backend(self, name: str) -> Backend:
        """Whole at once: of threads that find something missing, each would build it (cached_property has no lock from
        Python 3.12 on), and with tables of a vocabulary that takes tens of seconds."""
        with self._building:
            if name not in self._backends:
                self.table.warm()
                backend = BACKENDS.get(name)(self.table)
                backend.compile(Form("regex", "a"))
                self._backends[name] = backend
            return self._backends[name]


def _done(known: Compiled | UserError) -> "Future[Compiled]":
    future: Future[Compiled] = Future()
    if isinstance(known, UserError):
        # A copy: a traceback grows with each raise of one exception object.
        future.set_exception(UserError(known.message, param=known.param, code=known.code))
    else:
        future.set_result(known)
    return future
