"""A process that tries constraints out, as its owner sees it: jobs in, verdicts out, ended when it takes too long."""

import contextlib
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

import octavo
from octavo.base.errors import UserError
from octavo.grammar.frames import Broken, Job, Setup, Verdict, frame, read_frame
from octavo.grammar.spec import GrammarSpec

COMPILE_TIMEOUT_S = 2.0
LOAD_TIMEOUT_S = 60.0
MEMORY_BYTES = 768 << 20
STARVED_ROUNDS = 4  # times the limit that a process may take on a machine that gives it little of a core
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

TOO_SLOW = f"the constraint takes longer than {COMPILE_TIMEOUT_S:g} s to compile"
TOO_LARGE = "the constraint takes too much memory to compile"


class Child:
    """One process, started when first needed and again after it was ended. For one thread at a time."""

    def __init__(self, setup: Setup) -> None:
        self._setup = frame(msgspec.msgpack.encode(setup))
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: set[str] = set()
        self._closed = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._process is None else self._process.pid

    def judge(self, backend: str, spec: GrammarSpec) -> Verdict:
        """What one engine says of a constraint. A constraint that is too slow or too large is told by UserError."""
        if backend not in self._loaded:
            try:
                verdict = self._ask(Job(backend, spec, glance=True), LOAD_TIMEOUT_S)
                if verdict.error is None:
                    verdict = self._ask(Job(backend), LOAD_TIMEOUT_S)
            except (TimeoutError, Broken) as error:
                self._end()
                raise RuntimeError(f"the grammar engine {backend} does not start") from error
            if verdict.error is not None:
                return verdict
            self._loaded.add(backend)
        try:
            return self._ask(Job(backend, spec), COMPILE_TIMEOUT_S)
        except TimeoutError:
            self._end()
            raise UserError(TOO_SLOW, param=spec.param) from None
        except Broken:
            self._end()
            raise UserError(TOO_LARGE, param=spec.param) from None

    def close(self) -> None:
        """End the process for good."""
        self._closed = True
        self._end()

    def _ask(self, job: Job, timeout_s: float) -> Verdict:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(frame(msgspec.msgpack.encode(job)))
            process.stdin.flush()
        except OSError as error:
            raise Broken("the process is gone") from error
        _wait(process, timeout_s)
        return msgspec.msgpack.decode(read_frame(process.stdout.fileno(), timeout_s), type=Verdict)

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise Broken("closed")
            if self._process is None:
                self._process = _spawn()
        process = self._process
        if self._setup_sent != process.pid:
            assert process.stdin is not None
            try:
                process.stdin.write(self._setup)
            except OSError as error:
                raise Broken("the process is gone") from error
            self._setup_sent = process.pid
        return process

    _setup_sent: int | None = None

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            self._loaded.clear()
            self._setup_sent = None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _wait(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    """Until an answer begins. TimeoutError once the time has passed, unless the machine has let the process have less
    than half of it: what is fast enough must not be refused because a server is busy."""
    assert process.stdout is not None
    before = _cpu_seconds(process.pid)
    for _ in range(STARVED_ROUNDS):
        if select.select([process.stdout], [], [], timeout_s)[0]:
            return
        if before is None or (now := _cpu_seconds(process.pid)) is None or now - before >= timeout_s / 2:
            break
    raise TimeoutError


def _cpu_seconds(pid: int) -> float | None:
    """Processor time that a process has used; None where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _spawn() -> subprocess.Popen[bytes]:
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
