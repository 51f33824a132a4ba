"""uvicorn, with the end of life that a server of long streams needs.

The first SIGTERM or SIGINT drains: new requests get 503 while running ones finish, the port stays open for probes.
When they have, or after `shutdown_timeout`, the rest is cancelled. A second signal cancels at once.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from types import FrameType

import uvicorn

from octavo.serve.app import App
from octavo.serve.http11 import bounded_by

log = logging.getLogger("octavo.serve")

KEEP_ALIVE_S = 30
BACKLOG = 2048
POLL_S = 0.05
SETTLE_S = 1.0  # for cancelled requests to leave the engine


class HttpServer(uvicorn.Server):
    """One listening socket. `serve` returns when the server has ended; `signals` holds what ended it."""

    def __init__(self, app: App, on_drain: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded_by(app.service.config.serve.limits),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                backlog=BACKLOG,
            )
        )
        # It logs a line for each malformed request, and errors that App has logged already.
        quiet = logging.getLogger("uvicorn")
        quiet.propagate = False
        if not quiet.handlers:
            quiet.addHandler(logging.NullHandler())
        self.signals: list[int] = []
        self._drain_s = app.service.config.serve.shutdown_timeout
        self._on_drain = on_drain
        self._jobs = app.service.jobs

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """A signal came: drain, or end at once if it is not the first."""
        self.signals.append(sig)
        if self.should_exit:
            self.force_exit = True
        self.stop()

    def stop(self) -> None:
        """Begins to drain."""
        if not self.should_exit:
            self.should_exit = True
            self._on_drain()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """uvicorn raises the signals again at the end, which would turn a clean end into a killed process."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for running requests as long as it may, then ends the rest and closes the port."""
        loop = asyncio.get_running_loop()
        tasks = self.server_state.tasks
        if tasks:
            log.info("draining: %d requests are running, %g s at most", len(tasks), self._drain_s)
        end = loop.time() + self._drain_s
        while (tasks or self._jobs.busy) and loop.time() < end and not self.force_exit:
            await asyncio.sleep(POLL_S)
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        await self._cancel_rest()
        for connection in list(self.server_state.connections):
            connection.transport.close()
        await asyncio.sleep(0)

    async def _cancel_rest(self) -> None:
        tasks = list(self.server_state.tasks)
        if not tasks:
            return
        log.warning("ending %d requests before they are done", len(tasks))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=SETTLE_S)
