"""uvicorn, with two doors, TLS that renews itself, and the end of life that a server of long streams needs.

The first SIGTERM or SIGINT drains: new requests get 503 while running ones finish, the port stays open for probes.
When they have, or after `shutdown_timeout`, the rest is ended with an error. A second signal ends it at once.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import uvicorn

from octavo.serve.app import App
from octavo.serve.auth import is_loopback
from octavo.serve.connections import Connections
from octavo.serve.doors import LOOPBACK, bind, url_of
from octavo.serve.generate import ENDING
from octavo.serve.http11 import bounded_by
from octavo.serve.tls import Certificates, certificates

log = logging.getLogger("octavo.serve")

BACKLOG = 2048
POLL_S = 0.05
TLS_END_S = 5.0  # for the other side to answer the end of TLS
SETTLE_S = 1.0  # for cancelled requests to leave the engine


class HttpServer(uvicorn.Server):
    """`serve` returns when the server has ended; `signals` holds what ended it.

    The socket given to `serve` is the main door. With ``--admin-port`` there is another on loopback, without TLS.
    """

    def __init__(self, app: App, on_drain: Callable[[], None]) -> None:
        """Takes the admin port. ConfigError if it cannot be had, or for certificates that do not work."""
        serve = app.service.config.serve
        self.book = Connections(serve.limits)
        self._certificates = certificates(serve)
        if app.service.keys.active and self._certificates is None and not is_loopback(serve.host):
            log.warning("keys cross the network in the clear: give --ssl-certfile, or have a proxy in front do TLS")
        self.admin = None if serve.admin_port is None else bind(LOOPBACK, serve.admin_port, "--admin-port")
        self._inside = bounded_by(serve.limits, self.book, inside=True)
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded_by(serve.limits, self.book),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=serve.limits.timeout_keep_alive,
                backlog=BACKLOG,
            )
        )
        # It logs a line for each malformed request, and errors that App has logged already.
        quiet = logging.getLogger("uvicorn")
        quiet.propagate = False
        if not quiet.handlers:
            quiet.addHandler(logging.NullHandler())
        self.signals: list[int] = []
        self._drain_s = serve.shutdown_timeout
        self._handshake_s = serve.limits.header_timeout
        self._on_drain = on_drain
        self._jobs = app.service.jobs
        self._keys = app.service.keys

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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Opens the doors. uvicorn would give all of them the same protocol and TLS."""
        await self.lifespan.startup()
        self.servers = [
            await self._open(sock, self.config.http_protocol_class, self._certificates) for sock in sockets or ()
        ]
        if self.admin is not None:
            self.servers.append(await self._open(self.admin, self._inside, None))
            log.info("admin actions at %s", url_of(self.admin, LOOPBACK))
        self.started = True

    async def _open(self, sock: socket.socket, protocol: Any, tls: Certificates | None) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(
            lambda: protocol(self.config, self.server_state, self.lifespan.state),
            sock=sock,
            ssl=tls.context if tls else None,
            ssl_handshake_timeout=self._handshake_s if tls else None,
            ssl_shutdown_timeout=TLS_END_S if tls else None,
            backlog=BACKLOG,
        )

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: it looks after keys, and once a second after certificates."""
        self._keys.refresh()
        if counter % 10 == 0 and self._certificates is not None:
            self._certificates.refresh()
        return await super().on_tick(counter)

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
        for sock in [*(sockets or []), *([self.admin] if self.admin else [])]:
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
            task.cancel(ENDING)
        await asyncio.wait(tasks, timeout=SETTLE_S)
