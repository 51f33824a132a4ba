"""``python -m octavo.grammar.compile_worker``: tries constraints out, within limits of memory, where nothing else can
suffer. Started by grammar/child.py, which ends it when it takes too long.
"""

import ctypes
import os
import signal
import sys
from typing import Any

import msgspec

from octavo.base.errors import UserError
from octavo.grammar.base import Backend, Refused
from octavo.grammar.closing import Closer
from octavo.grammar.forms import check_spec
from octavo.grammar.frames import Broken, Job, Setup, Verdict, frame, read_frame
from octavo.grammar.registry import BACKENDS
from octavo.grammar.vocabulary import VocabularyTable

NICENESS = 5


class Workshop:
    """The engines over one vocabulary."""

    def __init__(self, setup: Setup) -> None:
        self._table = VocabularyTable(setup.vocabulary, setup.width)
        self._memory_bytes = setup.memory_bytes
        self._backends: dict[str, Backend] = {}
        self._row: Any = None

    def run(self, job: Job) -> Verdict:
        """Raises nothing that a constraint can cause."""
        try:
            backend = self._backend(job.backend)
            return Verdict() if job.spec is None else self._try(backend, job)
        except Refused as error:
            return Verdict(error=error.message, param=error.param, refused=True)
        except UserError as error:
            return Verdict(error=error.message, param=error.param)
        except MemoryError:
            return Verdict(error="the constraint needs too much memory", refused=True)

    def _try(self, backend: Backend, job: Job) -> Verdict:
        import numpy as np

        assert job.spec is not None
        form = check_spec(job.spec)
        reason = backend.refusal(form)
        if reason is not None:
            raise Refused(reason)
        matcher = backend.compile(form).matcher()
        if not matcher.fill(np.zeros(self._table.words, dtype=np.int32)):
            raise Refused("the constraint is too complex")
        opening = Closer(self._table, form.hints).shortest(matcher)
        return Verdict(form, opening)

    def _backend(self, name: str) -> Backend:
        if name not in self._backends:
            _limit_memory(None)
            backend: Backend = BACKENDS.get(name)(self._table)
            _warm(backend)
            self._backends[name] = backend
        _limit_memory(self._memory_bytes)
        return self._backends[name]


def _warm(backend: Backend) -> None:
    """What an engine builds once is not any constraint's cost."""
    from octavo.grammar.base import Form

    backend.compile(Form("regex", "a")).matcher()


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
