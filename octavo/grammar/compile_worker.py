"""``python -m octavo.grammar.compile_worker``: tries constraints out, within limits of memory, where nothing else can
suffer. Started by grammar/child.py, which ends it when it takes too long.
"""

import ctypes
import os
import signal
import sys
from functools import partial

import msgspec

from octavo.base.errors import UserError
from octavo.grammar.base import Backend, Form, Refused
from octavo.grammar.closing import Closer, example
from octavo.grammar.forms import check_spec
from octavo.grammar.frames import Broken, Job, Setup, Verdict, frame, read_frame
from octavo.grammar.registry import BACKENDS
from octavo.grammar.spec import GrammarSpec
from octavo.grammar.vocabulary import VocabularyTable

NICENESS = 5


class Workshop:
    """The engines over one vocabulary."""

    def __init__(self, setup: Setup) -> None:
        self._table = VocabularyTable(setup.vocabulary, setup.width)
        self._memory_bytes = setup.memory_bytes
        self._backends: dict[str, Backend] = {}

    def run(self, job: Job) -> Verdict:
        """Raises nothing that a constraint can cause."""
        try:
            if job.spec is None:
                self._load(self._backend(job.backend))
                return Verdict()
            return self._glance(job, job.spec) if job.glance else self._try(job, job.spec)
        except Refused as error:
            return Verdict(error=error.message, param=error.param, refused=True)
        except UserError as error:
            return Verdict(error=error.message, param=error.param)
        except MemoryError:
            return Verdict(error="the constraint needs too much memory", refused=True)

    def _glance(self, job: Job, spec: GrammarSpec) -> Verdict:
        _limit_memory(self._memory_bytes)
        reason = self._backend(job.backend).refusal(check_spec(spec, search=False))
        return Verdict(error=reason, refused=True)

    def _try(self, job: Job, spec: GrammarSpec) -> Verdict:
        import numpy as np

        _limit_memory(self._memory_bytes)
        backend = self._backend(job.backend)
        form = check_spec(spec, example=partial(example, backend, self._table))
        reason = backend.refusal(form)
        if reason is not None:
            raise Refused(reason)
        matcher = backend.compile(form).matcher()
        if not matcher.fill(np.zeros(self._table.words, dtype=np.int32)):
            raise Refused("the constraint is too complex")
        return Verdict(form, Closer(self._table, form.hints).shortest(matcher))

    def _backend(self, name: str) -> Backend:
        if name not in self._backends:
            self._backends[name] = BACKENDS.get(name)(self._table)
        return self._backends[name]

    def _load(self, backend: Backend) -> None:
        """What an engine builds once is not any constraint's cost."""
        _limit_memory(None)
        matcher = backend.compile(Form("regex", "a")).matcher()
        Closer(self._table).shortest(matcher)


def _limit_memory(more: int | None) -> None:
    """Let the address space grow by `more` bytes; None: without bound."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if more is None or not os.path.exists("/proc/self/statm"):
        soft = hard
    else:
        with open("/proc/self/statm", encoding="ascii") as file:
            soft = int(file.read().split()[0]) * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def main() -> int:
    """Until the stream ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive the engine, whatever happens
    os.nice(NICENESS)
    out = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not break the frames
    try:
        workshop = Workshop(msgspec.msgpack.decode(read_frame(0, None), type=Setup))
        jobs = msgspec.msgpack.Decoder(Job)
        while True:
            verdict = workshop.run(jobs.decode(read_frame(0, None)))
            data = memoryview(frame(msgspec.msgpack.encode(verdict)))
            while data:
                data = data[os.write(out, data) :]
    except Broken:
        return 0


if __name__ == "__main__":
    sys.exit(main())
