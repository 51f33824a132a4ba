"""The process that tries constraints out, as its owner sees it. Many may ask at once, each waits for its verdict."""

import contextlib
import itertools
import subprocess
import threading
import time
from concurrent.futures import Future

import msgspec

from octavo.base.errors import Overloaded, Unavailable, UserError
from octavo.grammar.frames import STARVED_S, Answer, Broken, Job, Setup, Verdict, frame, read_frame, write_all
from octavo.grammar.registry import CHOOSY
from octavo.grammar.spawn import spawn
from octavo.grammar.spec import UNSEEN, GrammarSpec

TRIES = 4  # of a constraint: whatever ends the process, it is not a constraint, which is tried in a fork of it
LOADED_S = 1.0  # of it that are left at least to one that an engine was loaded for
LATE_S = 1.0  # beyond all deadlines, for the process to say so itself
MOST_UNHEARD = 8  # answers in a row that did not come, after which it is taken to be stuck
LOAD_TIMEOUT_S = 60.0
MEMORY_BYTES = 256 << 20  # of each constraint

TOO_BUSY = "the server is too busy to compile the constraint; try again"
LOST = "the process that compiles constraints was lost; try again"


class Child:
    """One process, started when first needed and again after it was lost. Safe for several threads."""

    def __init__(self, setup: Setup) -> None:
        self._setup = frame(msgspec.msgpack.encode(setup))
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: set[str] = set()  # engines, by the process that runs now
        self._life = 0  # counts the processes that have ended
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
        is not counted. UserError for a constraint that is too slow or too large, and where the machine is too busy. If
        the process is lost meanwhile, the constraint goes to the next."""
        for _ in range(TRIES):
            with contextlib.suppress(Broken):
                return self._judge(backend, spec, deadline_s)
        raise Unavailable(LOST, retry_after_s=1.0)

    def _judge(self, backend: str, spec: GrammarSpec, deadline_s: float) -> Verdict:
        with self._lock:
            life, loaded = self._life, backend in self._loaded
        if not loaded:
            verdict = Verdict()
            if spec.kind in UNSEEN or backend in CHOOSY:
                verdict = self._ask(backend, spec, time.monotonic() + LOAD_TIMEOUT_S, life, glance=True)
            if verdict.error is None:
                verdict = self._load(backend, life)
            if verdict.error is not None:
                return verdict
            deadline_s = max(deadline_s, time.monotonic() + LOADED_S)
        return self._ask(backend, spec, deadline_s, life)

    def warm(self, backend: str) -> None:
        """Start the process and load an engine, if nobody has needed that yet. Who does is told of failures."""
        with contextlib.suppress(UserError, Broken):
            if self._process is None:
                self._load(backend, self._life)

    def close(self) -> None:
        """End the process for good."""
        self._closed = True
        self._end()

    def _load(self, backend: str, life: int) -> Verdict:
        verdict = self._ask(backend, None, time.monotonic() + LOAD_TIMEOUT_S, life)
        with self._lock:
            if verdict.error is None and life == self._life:
                self._loaded.add(backend)
        return verdict

    def _ask(
        self, backend: str, spec: GrammarSpec | None, deadline_s: float, life: int, *, glance: bool = False
    ) -> Verdict:
        """The verdict of the process of that life. Broken: it has ended."""
        job = Job(next(self._numbers), backend, spec, glance, deadline_s)
        future: Future[Verdict] = Future()
        with self._lock:
            if life != self._life:
                raise Broken("the process is gone")
            process = self._running()
            self._asked[job.number] = future
            sent = _send(process, frame(msgspec.msgpack.encode(job)))
        try:
            if not sent:
                self._end(process)
            verdict = future.result(max(0.0, deadline_s - time.monotonic()) + STARVED_S + LATE_S)
        except TimeoutError:
            self._unheard += 1
            if self._unheard < MOST_UNHEARD:
                raise Overloaded(TOO_BUSY) from None
            self._end(process)
            raise Unavailable(LOST, retry_after_s=1.0) from None
        finally:
            self._asked.pop(job.number, None)
        if verdict.busy:
            raise Overloaded(TOO_BUSY)
        return verdict

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._closed:
            raise Broken("closed")
        if self._process is None:
            self._process = process = spawn("octavo.grammar.compile_worker", output=subprocess.PIPE)
            self._unheard = 0
            threading.Thread(target=self._listen, args=(process,), name="octavo-grammar-answers", daemon=True).start()
            _send(process, self._setup)
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
            self._life += process is not None
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


def _send(process: "subprocess.Popen[bytes]", data: bytes) -> bool:
    """Whether it is there to take it."""
    assert process.stdin is not None
    try:
        write_all(process.stdin.fileno(), data)
    except OSError:
        return False
    return True
