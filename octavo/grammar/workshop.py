"""Workshop: what one constraint is worth to one engine. Runs where nothing else can suffer."""

import os
import random
import time
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from octavo.base.errors import UserError
from octavo.grammar.base import Backend, Form, Matcher, Refused
from octavo.grammar.closing import Closer, example
from octavo.grammar.closings import Closings, closings
from octavo.grammar.forms import check_spec
from octavo.grammar.frames import Job, Setup, Verdict
from octavo.grammar.registry import BACKENDS
from octavo.grammar.spec import GrammarSpec
from octavo.grammar.vocabulary import VocabularyTable

WALKS, STEPS = 8, 48
LOOKS = 4  # masks that are timed
QUICK_S = 0.002  # of a processor for one: ten times what usual constraints take, a fifth of what the dear ones do
USUAL = GrammarSpec(  # what most constraints need is imported and compiled for it
    "json_schema",
    """{"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-c]{2}$"}, "b": {"type": "integer",
    "minimum": 1}, "c": {"enum": ["d", null]}, "e": {"type": "array", "items": {"type": "string", "format": "date"}}},
    "required": ["a", "b"]}""",
)
TOO_LARGE = "the constraint takes too much memory to compile"


class Workshop:
    """The engines over one vocabulary."""

    def __init__(self, setup: Setup) -> None:
        self._table = VocabularyTable(setup.vocabulary, setup.width)
        self._memory_bytes = setup.memory_bytes
        self._backends: dict[str, Backend] = {}
        self._loaded: set[str] = set()

    def load(self, name: str) -> bool:
        """Get an engine ready: what it builds once is not any constraint's cost. False: it is. Raises Refused if it is
        not there."""
        if name in self._loaded:
            return False
        self._backend(name)
        address_space()  # its imports
        try:
            self._try(Job(0, name), USUAL)
        except UserError:  # some other engine's
            self._backend(name).compile(Form("regex", "a"))
        self._loaded.add(name)
        return True

    def run(self, job: Job) -> Verdict:
        """The verdict on `job.spec`. Raises nothing that a constraint can cause."""
        try:
            assert job.spec is not None
            limit_memory(self._memory_bytes)
            return self._glance(job, job.spec) if job.glance else self._try(job, job.spec)
        except Refused as error:
            return Verdict(error=error.message, param=error.param, refused=True)
        except UserError as error:
            return Verdict(error=error.message, param=error.param)
        except MemoryError:
            return Verdict(error=TOO_LARGE)

    def _glance(self, job: Job, spec: GrammarSpec) -> Verdict:
        reason = self._backend(job.backend).refusal(check_spec(spec, search=False))
        return Verdict(error=reason, refused=True)

    def _try(self, job: Job, spec: GrammarSpec) -> Verdict:
        import numpy as np

        backend = self._backend(job.backend)
        form = check_spec(spec, search=False)
        reason = backend.refusal(form)
        if reason is not None:
            raise Refused(reason)
        matcher = backend.compile(form).matcher()
        if not matcher.fill(np.zeros(self._table.words, dtype=np.int32)):
            raise Refused("the constraint is too complex")
        form = check_spec(spec, example=partial(example, backend, self._table))
        opening, known = look_over(self._table, matcher, form)
        if opening is None and self._is_dead(matcher):
            raise Refused("no text fits the constraint: wherever it leads, it stops with nothing that may follow")
        return Verdict(replace(form, hints=()), opening, known)

    def _is_dead(self, start: Matcher) -> bool:
        """Whether all of some walks of any tokens stop before anything is whole."""
        import numpy as np

        row, dice = np.zeros(self._table.words, dtype=np.int32), random.Random(0)
        for _ in range(WALKS):
            at = start.copy()
            for _ in range(STEPS):
                if at.is_accepting:
                    return False
                if not at.fill(row):
                    break
                tokens = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: self._table.width])
                if not tokens.size or not at.accept(int(dice.choice(tokens))):
                    break
            else:
                return False
        return True

    def _backend(self, name: str) -> Backend:
        if name not in self._backends:
            self._backends[name] = BACKENDS.get(name)(self._table, brief=True)
        return self._backends[name]


def look_over(table: VocabularyTable, start: Matcher, form: Form) -> tuple[list[int] | None, Closings]:
    """A short whole text of a form, None if none was found, and what the search for an end begins with."""
    is_json = form.kind == "json_schema" and not form.around
    known = closings(table, form.hints, is_json=is_json, longest=form.longest)
    opening = Closer(table, known).shortest(start)
    known = known.opened(table, opening)
    return opening, replace(known, is_quick=_is_quick(table, start, opening or ()))


def _is_quick(table: VocabularyTable, start: Matcher, opening: Sequence[int]) -> bool:
    """Whether masks on the way of a text take little. That is settled once for all who have the constraint, so what
    they say does not depend on the time."""
    import numpy as np

    at, row, took = start.copy(), np.zeros(table.words, dtype=np.int32), 0.0
    looks = set(range(0, len(opening), max(1, len(opening) // LOOKS)))
    for place, token in enumerate(opening):
        if place in looks:
            begin = time.process_time()
            at.fill(row)
            took += time.process_time() - begin
        if not at.accept(token):
            return False
    return took <= QUICK_S * len(looks)


def address_space() -> int | None:
    """Its bytes; None where the system does not say."""
    import resource

    if not os.path.exists("/proc/self/statm"):
        return None
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def limit_memory(more: int) -> None:
    """Let the address space grow by `more` bytes and no further; by less where the system says so."""
    import resource

    known = address_space()
    if known is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = known + more if hard == resource.RLIM_INFINITY else min(known + more, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
