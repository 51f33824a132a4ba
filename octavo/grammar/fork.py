"""A fork of the process that tries constraints out: it tries one after another until one was dear, and is ended by the
kernel's timers, of processor time and of the time that a request may wait.

To share pages and to part from them costs several times what most constraints do. So a fork is kept for the next one.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from octavo.grammar.frames import LENGTH, PATIENCE_S, STARVED_S, Answer, Job, Verdict, frame, read_frame, write_all
from octavo.grammar.workshop import TOO_LARGE, Workshop, address_space

OWN_NICENESS = 5  # of the process it comes from, once those have begun that waited for an engine
NICENESS = 5  # more than that
CPU_S = 0.6  # ten times what the worst of benchmarks/schemas.jsonl takes
ENOUGH_CPU_S = 0.1  # with less it was not the constraint's fault
KEPT_CPU_S = 0.05  # of one constraint, after which its fork goes too, with whatever it has piled up
KEPT_BYTES = 64 << 20  # by which a fork may have grown
READY = b"\1"  # it ends with its parent, even when it is stopped; and it may be given a constraint

TOO_SLOW = "the constraint takes too long to compile"
FAILED = "the constraint could not be compiled"


class Fork:
    """As its parent sees it."""

    __slots__ = (
        "_before_s",
        "_data",
        "_socket",
        "began",
        "deadline_s",
        "ended",
        "job",
        "pid",
        "ready",
        "stopped",
        "turns",
    )

    def __init__(self, workshop: Workshop, job: Job, inherited: int) -> None:
        """It begins with `job`. `inherited`: a descriptor that it must not keep open."""
        self._socket, other = socket.socketpair()
        parent, self.pid = os.getpid(), os.fork()
        if not self.pid:
            self._socket.close()  # so that the end of its parent is seen where the kernel does not end it, too
            _live(workshop, job, other.fileno(), parent, inherited)
        other.close()
        self.ready = False
        self.ended = False  # by this process
        self.stopped = False
        self.turns = 0
        self.job: Job | None = None
        self._data = b""
        self._before_s = 0.0  # processor time of the constraints before this one
        self._take(job)

    def fileno(self) -> int:
        """To wait for what it says."""
        return self._socket.fileno()

    @property
    def is_idle(self) -> bool:
        return self.job is None and self.ready and not self.ended

    @property
    def cpu_s(self) -> float:
        """Processor time that its constraint has used; more than enough where the system does not say."""
        used_s = self._used_s()
        return CPU_S if used_s is None else used_s - self._before_s

    def give(self, job: Job) -> bool:
        """Whether it is there to take it."""
        try:
            write_all(self.fileno(), frame(msgspec.msgpack.encode(job)))
        except OSError:
            self.ready = False
            return False
        self._before_s = self._used_s() or 0.0
        self._take(job)
        return True

    def hear(self) -> bytes | None:
        """The frame of an answer if it is whole, or nothing yet. None: it has gone; `end` is due."""
        try:
            data = os.read(self.fileno(), 1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            return None
        self._data += data
        if not self.ready:
            self.ready, self._data = True, self._data[len(READY) :]
        size = LENGTH + int.from_bytes(self._data[:LENGTH], "big")
        if len(self._data) < max(size, LENGTH + 1):
            return b""
        answer, self._data = self._data[:size], self._data[size:]
        self.job, self.ready = None, self._data.startswith(READY)
        self._data = b""
        self.stop(False)
        return answer

    def end(self) -> bytes:
        """What is to be said of the constraint that it took along."""
        self._socket.close()
        _, status, used = os.wait4(self.pid, 0)
        if self.job is None:
            return b""
        cpu_s = used.ru_utime + used.ru_stime - self._before_s
        return answer_to(self.job, sentence(status, cpu_s, self.ended))

    def kill(self) -> None:
        if not self.ended:
            self.ended = True
            os.kill(self.pid, signal.SIGKILL)

    def stop(self, stop: bool) -> None:
        """Let it rest, or go on for a turn. One that is not bound yet would stay for ever if this process were lost."""
        stop = stop and self.ready
        self.turns += not stop
        if stop != self.stopped and not self.ended:
            self.stopped = stop
            os.kill(self.pid, signal.SIGSTOP if stop else signal.SIGCONT)

    def _take(self, job: Job) -> None:
        self.job = job
        self.began = time.monotonic()
        self.deadline_s = max(job.deadline_s, self.began + PATIENCE_S)  # it may have stood in line

    def _used_s(self) -> float | None:
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None


def sentence(status: int, cpu_s: float, ended: bool) -> Verdict:
    """What the death of a fork says of its constraint."""
    cause = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if cause == signal.SIGPROF:
        return Verdict(error=TOO_SLOW)
    if cause == signal.SIGALRM or (cause == signal.SIGKILL and ended):
        if cpu_s < ENOUGH_CPU_S:
            return Verdict(busy=True)
        return Verdict(error=TOO_SLOW, passing=True)
    if os.WIFEXITED(status):  # by an error that nobody foresaw
        return Verdict(error=FAILED)
    # A kill from outside is one by the system, whose memory is over, or by somebody: of this hour in any case.
    return Verdict(error=TOO_LARGE, passing=cause == signal.SIGKILL)


def answer_to(job: Job, verdict: Verdict) -> bytes:
    """The frame of it."""
    return frame(msgspec.msgpack.encode(Answer(job.number, verdict)))


def die_with_parent() -> None:
    """Not to outlive the process that started this one, whatever happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def be_nice(niceness: int) -> None:
    """Give way to others at least so far."""
    os.nice(max(0, niceness - os.nice(0)))


def _live(workshop: Workshop, job: Job, descriptor: int, parent: int, inherited: int) -> None:
    """The fork's own life. Never returns."""
    try:
        os.close(inherited)
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        os.nice(NICENESS)
        jobs, start = msgspec.msgpack.Decoder(Job), address_space() or 0
        write_all(descriptor, READY)
        while True:
            before_s = time.process_time()
            _timers(CPU_S, max(0.01, job.deadline_s + STARVED_S - time.monotonic()))
            answer = answer_to(job, workshop.run(job))
            _timers(0, 0)
            dear = time.process_time() - before_s > KEPT_CPU_S or (address_space() or 0) - start > KEPT_BYTES
            write_all(descriptor, answer if dear else answer + READY)
            if dear:
                os._exit(0)
            job = jobs.decode(read_frame(descriptor))
            be_nice(OWN_NICENESS + NICENESS)  # whoever it began for, this one has not waited for an engine
    finally:
        os._exit(1)


def _timers(cpu_s: float, real_s: float) -> None:
    """What ends this process; 0: nothing."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, real_s)
