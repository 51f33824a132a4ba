"""The light load client against a small streaming server."""

import asyncio
import json
from contextlib import asynccontextmanager
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from octavo.base.errors import EngineError
from octavo.bench.raw import Answer, Group, Orders, run, send


class Server:
    """Streams `max_tokens` pieces, one each `gap` seconds, the last one empty; counts connections and open requests."""

    def __init__(self, gap=0.004):
        self.gap, self.open, self.most, self.peers = gap, 0, 0, set()
        self.status, self.cut, self.broken = 200, False, False

    async def handle(self, request):
        body = await request.json()
        self.peers.add(request.transport.get_extra_info("peername"))
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            if self.status != 200:
                return web.Response(status=self.status, text="no such thing")
            response = web.StreamResponse()
            await response.prepare(request)
            for index in range(body["max_tokens"]):
                await asyncio.sleep(self.gap)
                line = b"data: " + json.dumps({"choices": [{"text": f"t{index}"}]}, separators=(",", ":")).encode()
                # Cut in the middle: packets are not events.
                await response.write(line[:9])
                await response.write(line[9:] + b"\n\n")
                if self.cut:
                    request.transport.abort()
                    return response
            if self.broken:
                await response.write(b'event: error\ndata: {"error":{"message":"broke"}}\n\n')
                return response
            await response.write(b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n')
            usage = {"completion_tokens": body["max_tokens"]}
            await response.write(
                b"data: " + json.dumps({"choices": [], "usage": usage}, separators=(",", ":")).encode()
            )
            await response.write(b"\n\ndata: [DONE]\n\n")
            return response
        finally:
            self.open -= 1


@asynccontextmanager
async def running(server):
    app = web.Application()
    app.router.add_post("/v1/completions", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield urlsplit(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}").port
    finally:
        await runner.cleanup()


def orders(port, *groups, **more):
    return Orders(host="127.0.0.1", port=port, path="/v1/completions", groups=list(groups), **more)


def bodies(count, tokens=5):
    return [{"prompt": [1, 2, 3], "max_tokens": tokens} for _ in range(count)]


async def test_a_closed_loop_over_kept_connections():
    server = Server()
    async with running(server) as port:
        found = await run(orders(port, Group(bodies=bodies(9), at_once=3)))
    (answers,) = found.groups
    assert [(a.done, a.error, a.tokens, len(a.arrivals)) for a in answers] == [(True, None, 5, 5)] * 9
    assert server.most == len(server.peers) == 3
    assert all(0.004 <= a.ttft < found.seconds for a in answers)
    assert min(later - earlier for a in answers for earlier, later in pairwise(a.arrivals)) > 0.001
    assert 0 < found.cpu_share < 1.5


async def test_a_beat_does_not_wait_and_a_stop_cuts():
    server = Server(gap=0.02)
    async with running(server) as port:
        beat = Group(bodies=bodies(3, tokens=4), start_s=0.05, every_s=0.02)
        endless = Group(bodies=bodies(2, tokens=10_000), at_once=2)
        found = await run(orders(port, endless, beat, stop_s=0.6))
    streams, prompts = found.groups
    assert all(not a.done and a.error is None and len(a.arrivals) > 3 for a in streams)
    assert all(a.done for a in prompts)
    assert [round(b.sent - a.sent, 2) < 0.08 for a, b in pairwise(prompts)] == [True, True]
    assert server.most == 5
    assert found.seconds < 2


@pytest.mark.parametrize(
    ("trouble", "told"),
    [({"status": 404}, "404"), ({"cut": True}, "broke off"), ({"broken": True}, "broke")],
)
async def test_trouble_is_told(trouble, told):
    server = Server()
    vars(server).update(trouble)
    async with running(server) as port:
        found = await run(orders(port, Group(bodies=bodies(2))))
    assert all(not a.done and told in a.error for a in found.groups[0])


async def test_nobody_listens():
    found = await run(orders(1, Group(bodies=bodies(1))))
    assert "Connect" in found.groups[0][0].error
    with pytest.raises(EngineError, match="Connect"):
        _ = found.groups[0][0].ttft
    with pytest.raises(EngineError, match="no text came"):
        _ = Answer().ttft


async def test_in_a_process_of_its_own():
    async with running(Server()) as port:
        found = await asyncio.to_thread(send, orders(port, Group(bodies=bodies(2))))
    assert [a.tokens for a in found.groups[0]] == [5, 5]
