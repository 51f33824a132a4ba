"""Starting and ending the engine's process from the side of its parent."""

import asyncio
import contextlib
import signal
import threading
from typing import IO

from octavo.engine import spare
from octavo.engine.proc import Launch, write_launch

LEAVE_WAIT_S = 3.0


class EngineProcess:
    """A running engine process of one event loop. Its standard input stays open as long as it shall live."""

    def __init__(self, launch: Launch) -> None:
        """Start it, or take the one that was started ahead, and hand it its orders."""
        loop = asyncio.get_running_loop()
        self._process = spare.take() or spare.start()
        self._ended: asyncio.Future[int] = loop.create_future()

        def settle(code: int) -> None:
            if not self._ended.done():
                self._ended.set_result(code)

        def wait() -> None:
            code = self._process.wait()
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, code)

        threading.Thread(target=wait, daemon=True, name="octavo-engine-wait").start()
        with contextlib.suppress(ConnectionError):  # it died already; `wait` tells
            self._input.write(write_launch(launch))  # fits the pipe
            self._input.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    async def exit_code(self, timeout_s: float) -> int | None:
        """Its exit code, None if it still runs after `timeout_s` seconds."""
        return self._ended.result() if await self._gone_within(timeout_s) else None

    async def wait(self) -> str:
        """Wait for its end; how it ended, in words."""
        code = await asyncio.shield(self._ended)
        if code >= 0:
            return f"with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
        return f"by {name}{hint}"

    def kill(self) -> None:
        """Now, whatever it is doing; a stopped process too."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self, grace_s: float) -> None:
        """Wait `grace_s` seconds for it to leave by itself, then let it see us go, then kill it.

        It ignores SIGTERM, see proc.py; the end of its standard input is what makes it leave.
        """
        if await self._gone_within(grace_s):
            return
        with contextlib.suppress(ConnectionError):  # what it was told and never read goes with it
            self._input.close()
        if not await self._gone_within(LEAVE_WAIT_S):
            self.kill()
            await self._gone_within(LEAVE_WAIT_S)

    async def _gone_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), seconds)
        except TimeoutError:
            return False
        return True
