"""Starting and ending the engine's process from the side of its parent."""

import asyncio
import contextlib
import signal

from octavo.engine.proc import Launch, write_launch
from octavo.engine.spare import Started, command, environment, take

LEAVE_WAIT_S = 3.0


class EngineProcess:
    """A running engine process. Its standard input stays open as long as it shall live."""

    def __init__(self, process: "asyncio.subprocess.Process | Started") -> None:
        self._process = process

    @classmethod
    async def start(cls, launch: Launch) -> "EngineProcess":
        """Start it, or take the one that was started ahead, and hand it its orders. What it prints goes to standard
        error."""
        spare = take()
        if spare is not None:
            with contextlib.suppress(ConnectionError):  # it died already; `wait` tells
                spare.write(write_launch(launch))
            return cls(spare)
        process = await asyncio.create_subprocess_exec(
            *command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=2,
            env=environment(),
            start_new_session=True,  # a signal to the server's group (Ctrl-C, timeout) must not end it under a drain
        )
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it died already; `wait` tells
            process.stdin.write(write_launch(launch))
            await process.stdin.drain()
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def exit_code(self, timeout_s: float) -> int | None:
        """Its exit code, None if it still runs after `timeout_s` seconds."""
        return self._process.returncode if await self._gone_within(timeout_s) else None

    async def wait(self) -> str:
        """Wait for its end; how it ended, in words."""
        code = await self._process.wait()
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
        if isinstance(self._process, Started):
            self._process.close_input()
        elif self._process.stdin is not None:
            self._process.stdin.close()
        if not await self._gone_within(LEAVE_WAIT_S):
            self.kill()
            await self._gone_within(LEAVE_WAIT_S)

    async def _gone_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            return False
        return True
