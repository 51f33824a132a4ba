"""The process that tries constraints out, as its owner sees it. Many may ask at once, each waits for its verdict."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import msgspec

import octavo
from octavo.base.errors import Overloaded, Unavailable
from octavo.grammar.frames import STARVED_S, Answer, Broken, Job, Setup, Verdict, frame, read_frame, write_all
from octavo.grammar.spec import GrammarSpec

LOADED_S = 1.0  # of it that are left at least to one that an engine was loaded for
LATE_S = 1.0  # beyond all deadlines, for the process to say so itself
MOST_UNHEARD = 8  # answers in a row that did not come, after which it is taken to be stuck
LOAD_TIMEOUT_S = 60.0
MEMORY_BYTES = 256 << 20  # of each constraint
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

TOO_BUSY = "the server is too busy to compile the constraint; try again"
LOST = "the process that compiles constraints was lost; try again"


class Child:
    """One process, started when first needed and again after it was lost. Safe for several threads."""

    def __init__(self, setup: Setup) -> None:
        self._setup = frame(msgspec.msgpack.encode(setup))
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: set[str] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, Future[Verdict]] = {}
        self._unheard = 0

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._process is None else self._process.pid

    def judge(self, backend: str, spec: GrammarSpec, deadline_s: float) -> Verdict:
        """What one engine says of a constraint by `deadline_s` of the monotonic clock; what it takes to load an engine
        is not counted. UserError for a constraint that is too slow or too large, and where the machine is too busy."""
        try:
            if backend not in self._loaded:
                verdict = self._ask(backend, spec, time.monotonic() + LOAD_TIMEOUT_S, glance=True)
                if verdict.error is None:
                    verdict = self._ask(backend, None, time.monotonic() + LOAD_TIMEOUT_S)
                if verdict.error is not None:
                    return verdict
                self._loaded.add(backend)
                deadline_s = max(deadline_s, time.monotonic() + LOADED_S)
            return self._ask(backend, spec, deadline_s)
        except (TimeoutError, Broken):
            self._end()
            raise Unavailable(LOST, retry_after_s=1.0) from None

    def warm(self, backend: str) -> None:
        """Start the process and load an engine, if nobody has needed that yet. Who does is told of failures."""
        with contextlib.suppress(TimeoutError, Broken):
            if self._process is None and self._ask(backend, None, time.monotonic() + LOAD_TIMEOUT_S).error is None:
                self._loaded.add(backend)

    def close(self) -> None:
        """End the process for good."""
        self._closed = True
        self._end()

    def _ask(self, backend: str, spec: GrammarSpec | None, deadline_s: float, *, glance: bool = False) -> Verdict:
        job = Job(next(self._numbers), backend, spec, glance, deadline_s)
        future: Future[Verdict] = Future()
        with self._lock:
            process = self._running()
            self._asked[job.number] = future
            assert process.stdin is not None
            try:
                write_all(process.stdin.fileno(), frame(msgspec.msgpack.encode(job)))
            except OSError as error:
                raise Broken("the process is gone") from error
        try:
            verdict = future.result(max(0.0, deadline_s - time.monotonic()) + STARVED_S + LATE_S)
        except TimeoutError:
            self._unheard += 1
            if self._unheard >= MOST_UNHEARD:
                raise
            raise Overloaded(TOO_BUSY) from None
        finally:
            self._asked.pop(job.number, None)
        if verdict.busy:
            raise Overloaded(TOO_BUSY)
        return verdict

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._closed:
            raise Broken("closed")
        if self._process is None:
            self._process = process = _spawn()
            self._unheard = 0
            threading.Thread(target=self._listen, args=(process,), name="octavo-grammar-answers", daemon=True).start()
            assert process.stdin is not None
            try:
                write_all(process.stdin.fileno(), self._setup)
            except OSError as error:
                raise Broken("the process is gone") from error
        return self._process

    def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        """Hand out answers until the process ends; then tell those that still wait."""
        answers = msgspec.msgpack.Decoder(Answer)
        assert process.stdout is not None
        with contextlib.suppress(Broken, OSError, ValueError, msgspec.MsgspecError):
            while True:
                answer = answers.decode(read_frame(process.stdout.fileno()))
                self._unheard = 0
                future = self._asked.get(answer.number)
                if future is not None and not future.done():
                    future.set_result(answer.verdict)
        self._end(process)
        process.stdout.close()

    def _end(self, process: "subprocess.Popen[bytes] | None" = None) -> None:
        """End the process that runs, or `process` if it is that one."""
        with self._lock:
            if process is not None and process is not self._process:
                return
            process, self._process = self._process, None
            self._loaded.clear()
            waiting = list(self._asked.values())
        if process is None:
            return
        process.kill()
        process.wait()
        for future in waiting:
            if not future.done():
                future.set_exception(Broken("the process is gone"))
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()


def _spawn() -> "subprocess.Popen[bytes]":
    root = str(Path(octavo.__file__).parents[1])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    return subprocess.Popen(
        # -P: never import from the folder that the user happens to stand in.
        [sys.executable, "-P", "-m", "octavo.grammar.compile_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, **dict.fromkeys(THREADS, "1")},
        bufsize=0,
    )
