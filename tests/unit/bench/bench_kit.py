"""A small streaming server for load clients, and what they send it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


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
                line = event({"choices": [{"text": f"t{index}"}]})
                await response.write(line[:9])  # cut in the middle: a client must not take packets for events
                await response.write(line[9:])
                if self.cut:
                    request.transport.abort()
                    return response
            if self.broken:
                await response.write(b"event: error\n" + event({"error": {"message": "broke"}}))
                return response
            await response.write(event({"choices": [{"text": "", "finish_reason": "length"}]}))
            usage = {"completion_tokens": body["max_tokens"], "prompt_tokens": len(body["prompt"])}
            last = event({"choices": [], "usage": usage})
            await response.write(last[:-2])
            await response.write(last[-2:] + b"data: [DONE]\n\n")
            return response
        finally:
            self.open -= 1


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[int]:
    """The port that it serves /v1/completions on."""
    app = web.Application()
    app.router.add_post("/v1/completions", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site._server.sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


def bodies(count: int, tokens: int = 5) -> list[dict[str, object]]:
    return [{"prompt": [1, 2, 3], "max_tokens": tokens} for _ in range(count)]
