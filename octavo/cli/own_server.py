"""A server of one's own: started for a chat or a demo, gone with the process that started it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.base.args import options_of, to_argv
from octavo.base.config import EngineConfig, OctavoConfig
from octavo.bench.hardware import free_port
from octavo.cli.client import Client

STOP_WAIT_S = 10.0
POLL_S = 0.1


@contextmanager
def own_server(config: EngineConfig, port: int = 0, log_level: str = "warning") -> Iterator[Client]:
    """Serve `config` on this machine for the length of the block; gives a client once the server is ready.

    The server's progress bars and error lines go to our stderr. If it cannot start, SystemExit carries its
    exit code: it has already said why. It ends with us even when we are killed, since it watches its stdin.
    """
    port = port or free_port()
    argv = [sys.executable, "-m", "octavo.cli.attached", "serve", *to_argv(config)]
    argv += [f"--port={port}", "--host=127.0.0.1", f"--log-level={log_level}", "--shutdown-timeout=1"]
    # Its own process group: Ctrl-C in a terminal is for us, and we then stop the server in order.
    server = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True, env=_environment())
    try:
        client = Client(f"http://127.0.0.1:{port}")
        while not client.ready():
            code = server.poll()
            if code is not None:
                raise SystemExit(code if code > 0 else 1)
            time.sleep(POLL_S)
        yield client
    finally:
        _stop(server)


def port_in_use(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could not listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def _environment() -> dict[str, str]:
    """Ours without the option variables, which our own parse has already taken in."""
    variables = {name for option in options_of([OctavoConfig]) for name in option.variables}
    return {name: value for name, value in os.environ.items() if name not in variables}


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()
    if server.stdin is not None:
        server.stdin.close()
    try:
        server.wait(STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
