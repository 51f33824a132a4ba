"""Rest: whether the engine works, is about to give its memory back, or has done so.

    awake -- pause --> falling asleep -- sleep --> asleep -- wake --> awake
      ^                      |
      +------- resume -------+

While it falls asleep nobody starts and those that run go on, so that whoever commands may wait for them. `sleep` ends
the steps in flight and lets what still runs wait; after waking it is computed again and goes on with equal tokens.
"""

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.base.errors import ConfigError, EngineError, OctavoError, asleep
from octavo.base.human import format_bytes
from octavo.base.wire import MEMORY_TAGS as TAGS
from octavo.base.wire import EngineRequest
from octavo.engine.exec.base import Executor
from octavo.engine.guard import Guard
from octavo.sched.gates import MakeGates, PausedGate

if TYPE_CHECKING:
    from octavo.engine.core import Core

log = logging.getLogger(__name__)


class Rest:
    """Owned by the engine's thread. `level` is 0 while memory is all there, else that of the sleep."""

    def __init__(self, executor: Executor | None = None, *, wake_on_request: bool = False) -> None:
        """Without an executor it never sleeps."""
        self.level = 0
        self.news = False  # the level has changed and nobody was told
        self._executor = executor
        self._wake_on_request = wake_on_request
        self._gate = PausedGate()
        self._disturbed = False  # a request came while it fell asleep, and has its way

    def before(self, gates: MakeGates) -> MakeGates:
        """The scheduler's gates: this one, then those that `gates` makes."""
        return lambda limits, rows: [self._gate, *gates(limits, rows)]

    def guarded(self, guard: Guard) -> Guard:
        """`guard`, and behind it the door that is shut while the engine rests, or that wakes it."""

        def both(request: EngineRequest) -> None:
            guard(request)
            if self._gate.closed:
                self._knock()

        return both

    def pause(self) -> None:
        """Begin to fall asleep."""
        self._gate.closed = True
        self._disturbed = False

    def resume(self) -> None:
        """It was not meant so. An engine that sleeps stays asleep."""
        self._gate.closed = self.level > 0

    def sleep(self, core: "Core", level: int, *, abort: bool = False) -> dict[str, int | float]:
        """Give memory back, with whatever runs kept or ended. Raises ConfigError where that cannot be."""
        if self._executor is None:
            raise ConfigError("this engine cannot sleep")
        if self._disturbed:
            self._disturbed = False
            raise ConfigError("a request came meanwhile, and this engine wakes on requests: it stays awake")
        begin = time.monotonic()
        self._gate.closed = True
        if abort:
            core.abort(list(core.scheduler.board.requests))
        core.set_aside()
        try:
            given = self._executor.sleep(level)
        except BaseException:
            self.resume()
            raise
        core.scheduler.forget_prefixes()
        self.level = max(level, self.level)
        self.news = True
        seconds = time.monotonic() - begin
        log.info("asleep at level %d: %s given back in %.3f s", self.level, format_bytes(given), seconds)
        return {"level": self.level, "freed_bytes": given, "seconds": round(seconds, 4)}

    def wake(self, tags: Sequence[str] = TAGS) -> bool:
        """Bring memory back; whether all of it is there now. Raises EngineError in one line, and stays asleep then."""
        unknown = sorted(set(tags) - set(TAGS))
        if unknown:
            raise ConfigError(f"unknown tag {unknown[0][:40]!r}; tags are {', '.join(TAGS)}")
        if self._executor is None or not self.level:
            self.resume()
            return True
        begin = time.monotonic()
        try:
            down = self._executor.wake(tags)
        except (MemoryError, OctavoError, RuntimeError) as error:
            what = "the memory is not free" if isinstance(error, MemoryError) else str(error)
            raise EngineError(f"the engine could not wake and stays asleep: {what}") from error
        if down:
            return False
        self.level = 0
        self.news = True
        self._gate.closed = False
        log.info("awake after %.3f s", time.monotonic() - begin)
        return True

    def _knock(self) -> None:
        """A request came. Raises Unavailable unless it may wake the engine and that goes well."""
        if not self._wake_on_request:
            raise asleep("the engine is asleep; POST /wake_up wakes it")
        if not self.level:
            self._disturbed = True
            self._gate.closed = False
            return
        try:
            self.wake()
        except EngineError as error:
            log.error("%s", error)
            raise asleep("the engine is asleep and could not be woken") from None
