"""Where a server listens: the main door, and the operator's own on loopback."""

import socket

from octavo.base.errors import ConfigError

DOOR = "octavo.door"  # key in scope["extensions"] of what comes through the operator's door
LOOPBACK = "127.0.0.1"


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A listening socket's address taken. ConfigError in one line when it cannot be had; `flag` is what to change."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise ConfigError(f"--host {host[:80]}: no such address") from None
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen()  # a second server could bind an address that nobody listens on yet
    except OSError as exc:
        sock.close()
        reason = exc.strerror or "cannot be used"
        raise ConfigError(f"cannot listen on {host[:80]} port {port}: {reason.lower()}; try another {flag}") from None
    sock.setblocking(False)
    return sock


def url_of(sock: socket.socket, host: str, scheme: str = "http") -> str:
    """Where a browser on this machine, or one that knows `host`, finds the server."""
    port = sock.getsockname()[1]
    shown = LOOPBACK if host in {"0.0.0.0", "::", ""} else host
    return f"{scheme}://[{shown}]:{port}" if ":" in shown else f"{scheme}://{shown}:{port}"
