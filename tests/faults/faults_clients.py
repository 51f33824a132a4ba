"""Clients by hand: requests cut short, resets, bodies that no request should be."""

import asyncio
import json
import socket
import struct
from random import Random
from typing import Any

from faults_server import Client


def vanish(sock: socket.socket) -> None:
    """A reset, not a goodbye."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


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
