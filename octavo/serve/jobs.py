"""Work that outlives the request that began it: one named task each, with a handle that other requests may use."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("octavo.serve")

SETTLE_S = 5.0


class Jobs:
    """The running jobs of one server."""

    def __init__(self) -> None:
        self._tasks: dict[str, tuple[asyncio.Task[None], Any, bool]] = {}

    @property
    def busy(self) -> bool:
        """Whether a job runs that a shutdown should wait for."""
        return any(waits for _, _, waits in self._tasks.values())

    def start(self, name: str, work: Coroutine[Any, Any, None], handle: Any, *, waits: bool) -> None:
        """Runs `work` until it ends. `waits`: a shutdown gives it time, since it cannot be taken up again."""
        task = asyncio.create_task(work, name=name)
        self._tasks[name] = (task, handle, waits)
        task.add_done_callback(lambda done: self._ended(name, done))

    def get(self, name: str) -> Any:
        """The handle of a running job, or None."""
        found = self._tasks.get(name)
        return found[1] if found else None

    def count(self, prefix: str) -> int:
        """Running jobs whose name begins so."""
        return sum(name.startswith(prefix) for name in self._tasks)

    def cancel(self, name: str) -> asyncio.Task[None] | None:
        """Cancels a job; the task to wait for, or None if it is not running."""
        found = self._tasks.get(name)
        if found is None:
            return None
        found[0].cancel()
        return found[0]

    async def end(self) -> None:
        """Cancels all jobs and gives them time to write down where they were."""
        tasks = [task for task, _, _ in self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=SETTLE_S)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name, (None,))[0] is task:
            del self._tasks[name]
        if not task.cancelled() and task.exception() is not None:
            log.error("the job %s failed", name, exc_info=task.exception())
