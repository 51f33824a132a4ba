"""Supervisor: when the engine's process ends, for whatever reason, the next one is started, within bounds."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from octavo.base.clock import Clock, SystemClock
from octavo.base.errors import OctavoError
from octavo.engine.epoch import Epoch, Take

log = logging.getLogger(__name__)

WINDOW_S = 600.0
"""Crashes that lie further back are forgotten."""

BACKOFF_S = 1.0
MAX_BACKOFF_S = 30.0


class RestartPolicy:
    """At most `limit` restarts within `WINDOW_S`; the first at once, then after 1, 2, 4 ... seconds."""

    def __init__(self, limit: int, clock: Clock = SystemClock()) -> None:  # noqa: B008 - it has no state
        self.limit = limit
        self._clock = clock
        self._crashes: deque[float] = deque()

    @property
    def crashes(self) -> int:
        """Crashes within the window."""
        return len(self._crashes)

    def crashed(self) -> float | None:
        """Seconds to wait before the next start; None: there shall be none."""
        now = self._clock.now()
        self._crashes.append(now)
        while now - self._crashes[0] > WINDOW_S:
            self._crashes.popleft()
        count = len(self._crashes)
        if count > self.limit:
            return None
        return 0.0 if count == 1 else min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** (count - 2))


class Supervisor:
    """Runs one epoch after the other.

    `start` starts one; `fallen` is called when one has ended, `risen` when the next can be sent requests. `run` ends,
    with the reason in one line, when no more is to be started.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[Epoch]],
        policy: RestartPolicy,
        fallen: Callable[[str], None],
        risen: Callable[[Epoch, float], Awaitable[None]],
    ) -> None:
        self._start = start
        self._policy = policy
        self._fallen = fallen
        self._risen = risen

    async def run(self, epoch: Epoch, take: Take) -> str:
        """`epoch`: the one that runs. Cancelling it leaves the epoch that runs then to the caller."""
        loop = asyncio.get_running_loop()
        while True:
            cause = await epoch.run(take)
            begin = loop.time()
            log.error("%s", cause)
            self._fallen(cause)
            await epoch.end(0.0)
            following = await self._next(cause)
            if isinstance(following, str):
                return following
            epoch = following
            await self._risen(epoch, loop.time() - begin)

    async def _next(self, cause: str) -> Epoch | str:
        """The next epoch, or why there is none."""
        while True:
            delay = self._policy.crashed()
            if delay is None:
                return self._give_up(cause)
            if delay:
                log.warning("the engine is started again in %.0f s", delay)
                await asyncio.sleep(delay)
            try:
                return await self._start()
            except OctavoError as error:
                cause = f"the engine could not be started again: {error}"
                log.error("%s", cause)

    def _give_up(self, cause: str) -> str:
        if not self._policy.limit:
            return cause
        return f"the engine failed {self._policy.crashes} times within ten minutes; the last time: {cause}"
