"""Where an engine stands, seen by those who use it: starting, running, draining, dead; and whether it moves."""

from enum import Enum

from octavo.base.clock import Clock
from octavo.base.errors import EngineDead, Unavailable


class State(Enum):
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"  # finishes what it has, takes nothing new
    DEAD = "dead"


class Life:
    """The state of one engine. It only ever moves forward; the first cause of death stays."""

    def __init__(self, clock: Clock) -> None:
        self.state = State.STARTING
        self.cause = ""
        self._clock = clock
        self._steps = 0
        self._moved_at = clock.now()

    def run(self) -> None:
        if self.state is State.STARTING:
            self.state = State.RUNNING

    def drain(self) -> None:
        if self.state is not State.DEAD:
            self.state = State.DRAINING

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
        if self.state is State.DRAINING:
            raise Unavailable("the server is shutting down")
