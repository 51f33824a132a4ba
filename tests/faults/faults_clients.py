"""Clients by hand: requests cut short, resets, bodies that no request should be."""

import asyncio
import json
import socket
import struct
import sys
from pathlib import Path
from random import Random
from typing import Any

from faults_server import Client

ASKER = Path(__file__).parent / "faults_asker.py"


def vanish(sock: socket.socket) -> None:
    """A reset, not a goodbye."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def idlers(client: Client, count: int) -> list[socket.socket]:
    """Connections that say nothing, and as many that stop within a request."""
    loop, idle = asyncio.get_running_loop(), []
    for i in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", client.server.port))
        if i % 2:
            await loop.sock_sendall(sock, b"GET /health HTTP/1.1\r\nHost: lo")
        idle.append(sock)
        await asyncio.sleep(0)  # who asks beside this is not to wait for it
    return idle


async def asking(client: Client, waits: list[float], until: asyncio.Event) -> None:
    """Asks for /health from another process, and notes how long each answer took."""
    asker = await asyncio.create_subprocess_exec(
        sys.executable, str(ASKER), str(client.server.port), stdout=asyncio.subprocess.PIPE
    )
    assert asker.stdout is not None
    try:
        while not until.is_set():
            line = await asker.stdout.readline()
            assert line, "no answer from /health"
            waits.append(float(line))
    finally:
        asker.kill()
        await asker.wait()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def ask_raw(
    client: Client, body: dict[str, Any], cut: int | None = None, buffer: int | None = None
) -> socket.socket:
    """A request by hand, all of it or its first `cut` bytes."""
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    sock = socket.socket()
    sock.setblocking(False)
    if buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", client.server.port))
    await loop.sock_sendall(sock, (head.encode() + data)[:cut])
    return sock


async def nonsense(client: Client, random: Random) -> int:
    """A body that no request should be; its status."""
    fields: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 5}
    name, value = random.choice(
        [
            ("temperature", -1),
            ("temperature", "hot"),
            ("max_tokens", -5),
            ("max_tokens", 1 << 70),
            ("n", 1000),
            ("logit_bias", {"99999999": 5}),
            ("prompt", [-1]),
            ("prompt", [1 << 40]),
            ("prompt", {"a": 1}),
            ("prompt", "x" * 100_000),
            ("stop", ["x"] * 1000),
            ("seed", "s"),
            ("logprobs", 10_000),
            ("structured_outputs", {"regex": "(" * 50}),
            ("structured_outputs", {"json": {"type": 5}}),
            ("model", "other"),
            ("top_p", 1e308 * 10),
        ]
    )
    data = json.dumps({**fields, name: value}).encode()
    if random.random() < 0.3:
        data = data[: random.randrange(1, len(data) - 1)]
    elif random.random() < 0.2:
        data = random.randbytes(50)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    async with client.session.post(client.server.url + "/v1/completions", data=data, headers=headers) as reply:
        await reply.read()
        return reply.status
