"""``python -m octavo.grammar.compile_worker``: tries constraints out in forks of this process, which has the engines
loaded. So none can hurt another, several share the processor, and one that is ended costs little to replace.

Where there are more than may compute at once they take turns, so that one that needs little is soon done however many
need much; where there are more than may be there at once, the oldest leaves. Started by grammar/child.py.
"""

import gc
import os
import select
import signal
import sys
import time
from collections import deque

import msgspec

from octavo.base.errors import UserError
from octavo.grammar.fork import ENOUGH_CPU_S, OWN_NICENESS, Fork, answer_to, be_nice, die_with_parent
from octavo.grammar.frames import STARVED_S, Broken, Job, Setup, Verdict, read_frame, write_all
from octavo.grammar.workshop import Workshop

FIRST_S = 1.0  # after an engine is loaded, in which constraints come that have waited for it
PLACES = 4  # that compute at once
IDLE = 2  # that are kept for the next
TURN_S = 0.05
MOST = 16  # that are there at once; each may take up to Setup.memory_bytes
WHILE_S = 0.3  # that a constraint may stay for when others wait


class Yard:
    """The loop: jobs in, forks, answers out."""

    def __init__(self, workshop: Workshop, out: int) -> None:
        self._workshop = workshop
        self._out = out
        self._jobs = msgspec.msgpack.Decoder(Job)
        self._waiting: deque[Job] = deque()
        self._forks: list[Fork] = []
        self._old: set[Fork] = set()  # that lack an engine which was loaded since
        self._turn_s = 0.0
        self._humble_s = 0.0  # when this process is to give way to others; 0: it does, or has nothing to do it for

    def serve(self) -> None:
        """Until the stream ends, which raises Broken."""
        while True:
            sources: list[int | Fork] = [0, *self._forks]
            for source in select.select(sources, [], [], self._patience())[0]:
                if isinstance(source, Fork):
                    self._hear(source)
                else:
                    self._take(self._jobs.decode(read_frame(0)))
            self._arrange()

    @property
    def _busy(self) -> list[Fork]:
        return [fork for fork in self._forks if fork.job is not None]

    def _take(self, job: Job) -> None:
        if job.spec is not None:
            self._waiting.append(job)
            return
        try:
            if self._workshop.load(job.backend):
                gc.collect()
                gc.freeze()  # what is there now stays shared with the forks
                self._old = set(self._forks)
                self._humble_s = time.monotonic() + FIRST_S
            self._say(answer_to(job, Verdict()))
        except UserError as error:
            self._say(answer_to(job, Verdict(error=error.message, refused=True)))

    def _patience(self) -> float | None:
        """Time until something is due, if nothing happens."""
        busy = self._busy
        due = [fork.deadline_s for fork in busy if not fork.ended]
        if self._waiting:
            due += [self._waiting[0].deadline_s + STARVED_S, *(fork.began + WHILE_S for fork in busy)]
        if len(busy) > PLACES:
            due.append(self._turn_s)
        if self._humble_s:
            due.append(self._humble_s)
        return max(TURN_S / 2, min(due) - time.monotonic()) if due else None

    def _arrange(self) -> None:
        """End those whose time is over, begin those that wait, and let all have their turns."""
        now = time.monotonic()
        if 0 < self._humble_s <= now:
            self._humble_s = 0.0
            be_nice(OWN_NICENESS)
        for fork in self._busy:
            # One that a busy machine has given next to nothing is let go on.
            if now > fork.deadline_s and fork.cpu_s >= ENOUGH_CPU_S:
                fork.kill()
        while self._waiting and now > self._waiting[0].deadline_s + STARVED_S:
            self._say(answer_to(self._waiting.popleft(), Verdict(busy=True)))
        for fork in self._old:
            if fork.is_idle:
                fork.kill()
        while self._waiting and self._begin(self._waiting[0]):
            self._waiting.popleft()
        for fork in [fork for fork in self._forks if fork.is_idle][IDLE:]:
            fork.kill()
        self._make_room(now)
        self._share(now)

    def _begin(self, job: Job) -> bool:
        """Whether there is room for it."""
        if any(fork.is_idle and fork.give(job) for fork in self._forks):
            return True
        if len(self._forks) >= MOST:
            return False
        self._forks.append(Fork(self._workshop, job, self._out))
        return True

    def _make_room(self, now: float) -> None:
        """As many as wait, of those that have had their while and used it, the oldest first."""
        staying = sorted((fork for fork in self._busy if not fork.ended), key=lambda fork: fork.began)
        for fork in staying[: max(0, len(self._waiting) - len(self._forks) + len(staying))]:
            if now - fork.began >= WHILE_S and fork.cpu_s >= ENOUGH_CPU_S:
                fork.kill()

    def _share(self, now: float) -> None:
        """Those that have had the fewest turns go on, the others stop for a moment."""
        busy = self._busy
        going = sum(not fork.stopped for fork in busy)
        if going == min(PLACES, len(busy)) and (len(busy) <= PLACES or now < self._turn_s):
            return
        self._turn_s = now + TURN_S
        for place, fork in enumerate(sorted(busy, key=lambda fork: (fork.ended, fork.turns))):
            fork.stop(place >= PLACES)

    def _hear(self, fork: Fork) -> None:
        answer = fork.hear()
        if answer is None:
            self._forks.remove(fork)
            self._old.discard(fork)
            answer = fork.end()
        if answer:
            self._say(answer)

    def _say(self, data: bytes) -> None:
        write_all(self._out, data)


def main() -> int:
    """Until the stream ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
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
