"""`octavo serve`: take the port, answer probes, load the model, serve, end in order.

The port comes first: a port in use must fail within a second, not after minutes of loading.
"""

import asyncio
import contextlib
import gc
import logging
import socket
import time
from collections.abc import Awaitable, Callable

from octavo.base import log as logs
from octavo.base.config import OctavoConfig
from octavo.base.errors import ConfigError, ModelFileError, OctavoError
from octavo.serve.app import App
from octavo.serve.batches.runner import resume
from octavo.serve.calls import Backend, Service
from octavo.serve.connections import RESERVED_FILES, file_room
from octavo.serve.doors import bind, url_of
from octavo.serve.limits import Limits
from octavo.serve.pulse import beat
from octavo.serve.server import HttpServer

log = logging.getLogger("octavo.serve")

Launcher = Callable[[OctavoConfig], Awaitable[Backend]]

EXIT_OK = 0
EXIT_FAILED = 1
WATCH_S = 0.5
MAX_FILES = 65_536
MAX_RUNNING = 1024  # sequences beside those that wait, before the engine says its own number


def run(config: OctavoConfig, launcher: Launcher | None = None) -> int:
    """Serves until a signal. Returns the exit status: 0 after a drain, 1 on failure, 128+N after a second signal N.

    Raises ConfigError for an address that cannot be used and for bad keys, before anything is loaded.
    """
    logs.set_up(config.serve.log_level, config.serve.log_format)
    service = Service(config, Limits(config.serve, config.engine.scheduler.max_waiting + MAX_RUNNING))
    app = App(service)
    raise_file_limit(config.serve.limits.max_connections)
    sock = bind(config.serve.host, config.serve.port)
    with contextlib.closing(sock), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(_serve(app, sock, launcher or _launch))
    logs.hang_up()
    return code


def raise_file_limit(connections: int) -> None:
    """Lets the process hold as many connections as the system allows it; the usual soft limit is 1024. Says so where
    that is fewer than `connections`."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVED_FILES
    wanted = max(MAX_FILES, needed)
    if hard != resource.RLIM_INFINITY:
        wanted = min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    room = file_room()
    if room < connections:
        log.warning(
            "the system allows %d open files here, which is room for %d connections of the %d of --max-connections: "
            "raise the hard limit (ulimit -Hn, LimitNOFILE, --ulimit nofile)",
            *(hard, room, connections),
        )


async def _launch(config: OctavoConfig) -> Backend:
    from octavo.serve.start import launch  # the engine's side is not needed to take the port

    return await launch(config)


async def _serve(app: App, sock: socket.socket, launcher: Launcher) -> int:
    service, begin = app.service, time.monotonic()
    url = url_of(sock, service.config.serve.host, "https" if service.config.serve.ssl_certfile else "http")

    def drain() -> None:
        service.draining = True

    server = HttpServer(app, drain)
    http = asyncio.create_task(server.serve(sockets=[sock]))
    pulse = asyncio.create_task(beat(service))
    start = asyncio.ensure_future(launcher(service.config))
    backend: Backend | None = None
    failed = False
    try:
        await asyncio.wait({http, start}, return_when=asyncio.FIRST_COMPLETED)
        if not http.done():
            backend = start.result()
            service.attach(backend)
            await resume(service)
            # What start-up made, a vocabulary's worth of objects, lives as long as the process: the collector would
            # hold every stream up for tens of milliseconds to walk it.
            gc.freeze()
            gc.enable()
            names = ", ".join(service.names)
            seconds = time.monotonic() - begin
            logs.tell(f"serving {names} at {url} (ready after {seconds:.1f} s)")
            failed = not await _until_end(service, http)
    except (OctavoError, OSError) as exc:
        failed = True
        logs.tell(one_line(exc), failed=True)
    finally:
        server.stop()
        await _settle(http, start)
        pulse.cancel()
        await service.jobs.end()  # while the engine still runs, so that each can write down where it was
        if backend is not None:
            await backend.engine.close()
        service.close()
    if len(server.signals) > 1:
        return 128 + server.signals[1]
    return EXIT_FAILED if failed else EXIT_OK


async def _until_end(service: Service, http: asyncio.Task[None]) -> bool:
    """True when the server ended by itself, False when the engine died under it."""
    while not http.done():
        await asyncio.wait({http}, timeout=WATCH_S)
        cause = service.cause_of_death
        if cause is not None and not http.done():
            logs.tell(f"the engine has stopped for good: {cause}", failed=True)
            return False
    http.result()
    return True


async def _settle(http: asyncio.Task[None], start: "asyncio.Future[Backend]") -> None:
    if not start.done():
        start.cancel()
    await asyncio.gather(http, start, return_exceptions=True)


def one_line(exc: BaseException) -> str:
    """An error as a person at the command line should see it."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    return text if isinstance(exc, ConfigError | ModelFileError) else f"could not start: {text}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not built for Windows
        return None
    return uvloop.new_event_loop


__all__ = ["EXIT_FAILED", "EXIT_OK", "bind", "run", "url_of"]
