"""A slow beat beside the requests: how late the event loop is, and now and then a line of figures."""

import asyncio
import logging

from octavo.base.wire import EngineStats
from octavo.serve.calls import Service

log = logging.getLogger("octavo.stats")

BEAT_S = 0.25
LINE_S = 10.0


async def beat(service: Service) -> None:
    """Runs until it is cancelled."""
    loop = asyncio.get_running_loop()
    line = Line(service.stats(), loop.time())
    quiet = service.config.serve.disable_log_stats
    while True:
        due = loop.time() + BEAT_S
        await asyncio.sleep(BEAT_S)
        now = loop.time()
        service.metrics.lag.observe(max(0.0, now - due))
        if not quiet and now - line.since >= LINE_S:
            text = line.next(service.stats(), now)
            if text:
                log.info("%s", text)


class Line:
    """Rates between two looks at the engine's figures, in vLLM's words."""

    def __init__(self, stats: EngineStats, now: float) -> None:
        self.since = now
        self._last = stats

    def next(self, stats: EngineStats, now: float) -> str:
        """The figures since the last look; empty while nothing has moved."""
        before, seconds = self._last, now - self.since
        self._last, self.since = stats, now
        if stats.steps <= before.steps:  # idle, or an engine begun anew
            return ""
        looked = stats.prefix_queries - before.prefix_queries
        found = stats.prefix_hits - before.prefix_hits
        read = (stats.prompt_tokens - before.prompt_tokens) / seconds
        made = (stats.generation_tokens - before.generation_tokens) / seconds
        return (
            f"Avg prompt throughput: {read:.1f} tokens/s, Avg generation throughput: {made:.1f} tokens/s, "
            f"Running: {stats.running} reqs, Waiting: {stats.waiting} reqs, "
            f"KV cache usage: {100 * stats.kv_usage:.1f}%, "
            f"Prefix cache hit rate: {100 * found / looked if looked else 0.0:.1f}%"
        )
