"""Replay: after a crash the open requests go to the next process, in parts, so that the one that caused it shows."""

import asyncio
from collections.abc import Callable, Collection

from octavo.base import ipc
from octavo.engine.journal import Entry, Journal

TRIALS = 16
"""Parts in which requests are sent again. The smaller a part, the fewer are suspected with the one at fault."""

FULL_WAIT_S = 0.01  # for an engine that does not read as fast as it is sent requests


class Trial:
    """Those that run again after a crash and have not got past its place yet."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self._over = asyncio.Event()

    def begin(self, ids: Collection[str]) -> None:
        """One group; the one before is through."""
        self.ids = set(ids)
        self._over.clear()
        self.acquit("")

    def acquit(self, id: str) -> None:
        """It has got a token, or has ended."""
        self.ids.discard(id)
        if not self.ids:
            self._over.set()

    async def over(self) -> None:
        """Wait until all of the group are through."""
        await self._over.wait()


class Replay:
    """Sends what no running engine has. `dispatch` sends one, False if it must be tried again; `refuse` ends one that
    has grown too long for a message; `sent` counts those that went on."""

    def __init__(
        self,
        journal: Journal,
        dispatch: Callable[[Entry], bool],
        refuse: Callable[[Entry], None],
        sent: Callable[[], None],
    ) -> None:
        self.trial = Trial()
        self._journal = journal
        self._dispatch = dispatch
        self._refuse = refuse
        self._sent = sent
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """A process takes requests."""
        self._task = asyncio.create_task(self._run())

    def stop(self) -> frozenset[str]:
        """There is none. Those that were on trial."""
        if self._task is not None:
            self._task.cancel()
        on_trial = frozenset(self.trial.ids)
        self.trial.begin(())
        return on_trial

    async def _run(self) -> None:
        """In their order. Those that saw the crash go in parts: the next follows when each of the last has got past
        the place where it was. Those that came later wait behind them."""
        suspects = [entry for entry in self._journal.unsent() if entry.crashes]
        size = max(1, len(suspects) // TRIALS)
        for first in range(0, len(suspects), size):
            part = [entry for entry in suspects[first : first + size] if entry.request.id in self._journal]
            self.trial.begin([entry.request.id for entry in part])
            for entry in part:
                if await self._send(entry):
                    self._sent()
            await self.trial.over()
        for entry in self._journal.unsent():
            await self._send(entry)

    async def _send(self, entry: Entry) -> bool:
        """False for one that ended meanwhile, or ends now."""
        while entry.request.id in self._journal:
            try:
                if self._dispatch(entry):
                    return True
            except ipc.FrameTooLong:
                self._refuse(entry)
                return False
            await asyncio.sleep(FULL_WAIT_S)
        return False
