"""Where an engine stands, seen by those who use it: starting, running, restarting, dead; and whether it moves."""

from enum import Enum

from msgspec import Struct

from octavo.base.clock import Clock
from octavo.base.errors import EngineDead, Unavailable


class State(Enum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"  # its process has ended, the next is on its way
    DEAD = "dead"


class Survival(Struct):
    """What an engine has lived through. Counts since its client began."""

    restarts: int = 0
    replayed: int = 0  # requests that went on in another process
    failed: int = 0  # requests that were ended because of crashes
    last_restart_s: float = 0.0  # from the end of one process until the next took requests


class Life:
    """The state of one engine, across the processes that it lives in. The first cause of death stays."""

    def __init__(self, clock: Clock) -> None:
        self.state = State.STARTING
        self.draining = False  # finishes what it has, takes nothing new
        self.cause = ""
        self._clock = clock
        self._steps = 0
        self._moved_at = clock.now()

    def run(self) -> None:
        if self.state is not State.DEAD:
            self.state = State.RUNNING

    def fall(self) -> None:
        """Its process has ended; another will follow."""
        if self.state is not State.DEAD:
            self.state = State.RESTARTING

    def drain(self) -> None:
        self.draining = True

    def die(self, cause: str) -> bool:
        """True the first time."""
        if self.state is State.DEAD:
            return False
        self.state, self.cause = State.DEAD, cause
        return True

    def moved(self, steps: int) -> None:
        """The engine has done `steps` steps in all."""
        if steps != self._steps:
            self._steps = steps
            self._moved_at = self._clock.now()

    def began_work(self) -> None:
        """Work came to an idle engine: from now on it should move."""
        self._moved_at = self._clock.now()

    @property
    def still_s(self) -> float:
        """Seconds since the last step that is known of."""
        return self._clock.now() - self._moved_at

    def check_alive(self) -> None:
        """Raises EngineDead."""
        if self.state is State.DEAD:
            raise EngineDead(self.cause)

    def check_open(self) -> None:
        """Raises EngineDead, or Unavailable while draining."""
        self.check_alive()
        if self.draining:
            raise Unavailable("the server is shutting down")
