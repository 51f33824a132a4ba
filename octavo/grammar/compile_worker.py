"""``python -m octavo.grammar.compile_worker``: tries constraints out, each in a fork of this process, which has the
engines loaded. So none can hurt another, several share the processor, and one that is ended costs nothing to replace.

A fork ends itself by the kernel's timers: of processor time, and of the time that its request may wait. Where there are
more than may compute at once they take turns, so that one that needs little is soon done however many need much; where
there are more than may be there at once, the oldest leaves. Started by grammar/child.py.
"""

import ctypes
import gc
import os
import select
import signal
import sys
import time
from collections import deque
from pathlib import Path

import msgspec

from octavo.base.errors import UserError
from octavo.grammar.frames import (
    PATIENCE_S,
    STARVED_S,
    Answer,
    Broken,
    Job,
    Setup,
    Verdict,
    frame,
    read_frame,
    write_all,
)
from octavo.grammar.workshop import TOO_LARGE, Workshop

NICENESS = 10  # of a fork, beside the engine: a tenth of what that gets
OWN_NICENESS = 5  # of this process, which has an engine to load, and whose pages a fork takes a while to share
PLACES = 4  # that compute at once
TURN_S = 0.05
MOST = 16  # that are there at once; each may take up to Setup.memory_bytes
WHILE_S = 0.3  # that a constraint may stay for when others wait
CPU_S = 0.6  # ten times what the worst of benchmarks/schemas.jsonl takes
ENOUGH_CPU_S = 0.1  # with less it was not the constraint's fault
BOUND = b"\1"  # a fork's first byte: from now on it ends with this process, even when it is stopped

TOO_SLOW = "the constraint takes too long to compile"


class Fork:
    """A constraint that is being tried."""

    __slots__ = ("began", "data", "deadline_s", "ended", "job", "pid", "stopped", "turns")

    def __init__(self, job: Job, pid: int) -> None:
        self.job = job
        self.pid = pid
        self.data = b""
        self.ended = False  # by this process
        self.stopped = False
        self.turns = 0
        self.began = time.monotonic()
        self.deadline_s = max(job.deadline_s, self.began + PATIENCE_S)  # it may have stood in line

    @property
    def cpu_s(self) -> float:
        """Processor time that it has used; more than enough where the system does not say."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return CPU_S

    def kill(self) -> None:
        if not self.ended:
            self.ended = True
            os.kill(self.pid, signal.SIGKILL)

    def stop(self, stop: bool) -> None:
        """Let it rest, or go on for a turn. One that is not bound yet would stay for ever if this process were lost."""
        stop = stop and self.data.startswith(BOUND)
        self.turns += not stop
        if stop != self.stopped and not self.ended:
            self.stopped = stop
            os.kill(self.pid, signal.SIGSTOP if stop else signal.SIGCONT)

    def end(self) -> bytes:
        """Its answer, once it has closed its pipe."""
        _, status, used = os.wait4(self.pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return self.data.removeprefix(BOUND)
        return _answer(self.job, _sentence(status, used.ru_utime + used.ru_stime, self.ended))


def _sentence(status: int, cpu_s: float, ended: bool) -> Verdict:
    """What the death of a fork says of its constraint."""
    cause = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if cause == signal.SIGPROF:
        return Verdict(error=TOO_SLOW)
    if cause == signal.SIGALRM or (cause == signal.SIGKILL and ended):
        if cpu_s < ENOUGH_CPU_S:
            return Verdict(busy=True)
        return Verdict(error=TOO_SLOW, passing=True)
    # A kill from outside is one by the system, whose memory is over, or by somebody: of this hour in any case.
    return Verdict(error=TOO_LARGE, passing=cause == signal.SIGKILL)


class Yard:
    """The loop: jobs in, forks, answers out."""

    def __init__(self, workshop: Workshop, out: int) -> None:
        self._workshop = workshop
        self._out = out
        self._jobs = msgspec.msgpack.Decoder(Job)
        self._waiting: deque[Job] = deque()
        self._forks: dict[int, Fork] = {}  # by the reading end of its pipe
        self._turn_s = 0.0

    def serve(self) -> None:
        """Until the stream ends, which raises Broken."""
        while True:
            ready, _, _ = select.select([0, *self._forks], [], [], self._patience())
            for descriptor in ready:
                if descriptor:
                    self._read(descriptor)
                else:
                    self._take(self._jobs.decode(read_frame(0)))
            self._arrange()

    def _take(self, job: Job) -> None:
        if job.spec is not None:
            self._waiting.append(job)
            return
        try:
            if self._workshop.load(job.backend):
                gc.collect()
                gc.freeze()  # what is there now stays shared with the forks
            self._say(_answer(job, Verdict()))
        except UserError as error:
            self._say(_answer(job, Verdict(error=error.message, refused=True)))

    def _patience(self) -> float | None:
        """Time until something is due, if nothing happens."""
        due = [fork.deadline_s for fork in self._forks.values() if not fork.ended]
        if self._waiting:
            due += [self._waiting[0].deadline_s + STARVED_S, *(fork.began + WHILE_S for fork in self._forks.values())]
        if len(self._forks) > PLACES:
            due.append(self._turn_s)
        return max(TURN_S / 2, min(due) - time.monotonic()) if due else None

    def _arrange(self) -> None:
        """End those whose time is over, begin those that wait, and let all have their turns."""
        now = time.monotonic()
        for fork in list(self._forks.values()):
            # One that a busy machine has given next to nothing is let go on.
            if now > fork.deadline_s and fork.cpu_s >= ENOUGH_CPU_S:
                fork.kill()
        while self._waiting and (now > self._waiting[0].deadline_s + STARVED_S or len(self._forks) < MOST):
            job = self._waiting.popleft()
            if now > job.deadline_s + STARVED_S:
                self._say(_answer(job, Verdict(busy=True)))
            else:
                self._fork(job)
        self._make_room(now)
        self._share(now)

    def _make_room(self, now: float) -> None:
        """As many as wait, of those that have had their while and used it, the oldest first."""
        staying = sorted((fork for fork in self._forks.values() if not fork.ended), key=lambda fork: fork.began)
        for fork in staying[: max(0, len(self._waiting) - len(self._forks) + len(staying))]:
            if now - fork.began >= WHILE_S and fork.cpu_s >= ENOUGH_CPU_S:
                fork.kill()

    def _share(self, now: float) -> None:
        """Those that have had the fewest turns go on, the others stop for a moment."""
        going = sum(not fork.stopped for fork in self._forks.values())
        if going == min(PLACES, len(self._forks)) and (len(self._forks) <= PLACES or now < self._turn_s):
            return
        self._turn_s = now + TURN_S
        for place, fork in enumerate(sorted(self._forks.values(), key=lambda fork: (fork.ended, fork.turns))):
            fork.stop(place >= PLACES)

    def _fork(self, job: Job) -> None:
        reader, writer = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            os.close(writer)
            self._forks[reader] = Fork(job, pid)
            return
        try:
            os.close(self._out)  # its end tells the engine that this process is gone, whatever became of its forks
            _die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            write_all(writer, BOUND)
            os.nice(NICENESS - OWN_NICENESS)
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            signal.setitimer(signal.ITIMER_REAL, max(0.01, job.deadline_s + STARVED_S - time.monotonic()))
            write_all(writer, _answer(job, self._workshop.run(job)))
            os._exit(0)
        finally:
            os._exit(1)

    def _read(self, descriptor: int) -> None:
        fork, data = self._forks[descriptor], os.read(descriptor, 1 << 20)
        if data:
            fork.data += data
            return
        os.close(descriptor)
        del self._forks[descriptor]
        self._say(fork.end())

    def _say(self, data: bytes) -> None:
        write_all(self._out, data)


def _answer(job: Job, verdict: Verdict) -> bytes:
    return frame(msgspec.msgpack.encode(Answer(job.number, verdict)))


def _die_with_parent() -> None:
    """Not to outlive the process that started this one, whatever happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main() -> int:
    """Until the stream ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    os.nice(OWN_NICENESS)
    out = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not break the frames
    try:
        workshop = Workshop(msgspec.msgpack.decode(read_frame(0), type=Setup))
        Yard(workshop, out).serve()
    except (Broken, BrokenPipeError):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
