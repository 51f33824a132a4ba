"""Whether the engine still moves: it has work, and nothing is heard of it.

An engine with work says something every second, be it only that it waits. Silence is a long step, or a hang. A step
takes processor time; a process that is stopped or waits for a lock for ever takes none, and is given up much sooner.
"""

from collections.abc import Callable

from octavo.base.clock import Clock

LOOK_S = 1.0
LATE_S = 3.0
"""A look that comes so late was itself held up, and so may have been what the engine said."""

QUIET_S = 10.0
"""Silence without any processor time, after which the engine is given up."""

BUSY_S = {"cpu": 600.0, "cuda": 60.0}
"""Silence with processor time, by device: no step takes so long."""

LEAST_CPU_S = 0.005


class Watchdog:
    """`look` is to be called every `LOOK_S` seconds."""

    def __init__(self, clock: Clock, busy_s: float, cpu_s: Callable[[], float | None]) -> None:
        """`cpu_s`: seconds of processor time that the engine's process has taken, None if it is not known."""
        self._clock = clock
        self._busy_s = busy_s
        self._cpu_s = cpu_s
        self._looked_at = clock.now()
        self._heard_at = clock.now()
        self._worked_at = clock.now()
        self._cpu = 0.0

    def heard(self) -> None:
        """The engine has said something, or has nothing to do."""
        self._heard_at = self._worked_at = self._clock.now()

    def look(self) -> str | None:
        """Why the engine is to be given up, or None."""
        now = self._clock.now()
        late = now - self._looked_at > LATE_S
        self._looked_at = now
        if late:
            self.heard()
            return None
        silent_s = now - self._heard_at
        if silent_s < LOOK_S:
            return None
        self._measure(now)
        if silent_s >= self._busy_s:
            return f"the engine has done no step for {silent_s:.0f} s"
        if now - self._worked_at >= QUIET_S:
            return f"the engine has done nothing at all for {silent_s:.0f} s"
        return None

    def _measure(self, now: float) -> None:
        cpu = self._cpu_s()
        if cpu is None or abs(cpu - self._cpu) > LEAST_CPU_S:
            self._worked_at = now
        self._cpu = cpu or 0.0
