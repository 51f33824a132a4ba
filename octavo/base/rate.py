"""How often something happens, measured; and from it how long somebody should stay away."""

import math

from octavo.base.clock import Clock

SPAN_S = 20.0
MIN_WAIT_S, MAX_WAIT_S = 1.0, 60.0
ROOM_SHARE = 0.25  # who finds a line full comes back when so much of it has moved on
UNKNOWN_WAIT_S = 5.0  # nothing has happened yet to measure by


class Rate:
    """Events a second over about the last `SPAN_S` seconds; older ones fade out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin = self._at = clock.now()
        self._weight = 0.0

    def note(self, count: float = 1.0) -> None:
        """`count` events have happened now."""
        self._fade()
        self._weight += count

    def per_second(self) -> float:
        """Zero as long as nothing has happened."""
        self._fade()
        age = self._at - self._begin
        span = SPAN_S * -math.expm1(-age / SPAN_S)  # a young rate has seen less than its span
        return self._weight / max(span, 1.0)

    def wait_s(self, count: float) -> float:
        """Seconds until `count` more events at this rate, between one second and a minute."""
        rate = self.per_second()
        if rate < 1e-6:
            return UNKNOWN_WAIT_S
        return min(max(count / rate, MIN_WAIT_S), MAX_WAIT_S)

    def _fade(self) -> None:
        now = self._clock.now()
        self._weight *= math.exp(-(now - self._at) / SPAN_S)
        self._at = now
