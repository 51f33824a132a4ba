"""An HTTP load generator: open loop at a Poisson rate, or closed loop at a fixed concurrency. No torch.

It runs in a process of its own, so that what it costs is not taken from the server's event loop.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

MAX_LINE_BYTES = 16 << 20


@dataclass(slots=True)
class Outcome:
    """One request as its client saw it. Times in seconds from sending."""

    prompt_len: int = 0
    tokens: int = 0
    ttft: float = math.nan
    itl: list[float] = field(default_factory=list)  # between pieces of text
    e2e: float = math.nan
    error: str | None = None

    @property
    def tpot(self) -> float:
        """Time per output token after the first; NaN for fewer than two tokens."""
        return (self.e2e - self.ttft) / (self.tokens - 1) if self.tokens > 1 else math.nan


@dataclass(frozen=True, slots=True)
class Pace:
    """When requests are sent. Rate infinite: all at once, or as fast as `concurrency` lets them."""

    rate: float = math.inf  # requests a second, on average
    burstiness: float = 1.0  # 1: Poisson; below: bursts; above: even
    concurrency: int | None = None  # most requests at a time
    seed: int = 0

    def arrivals(self, count: int) -> list[float]:
        """Seconds from the start at which each request is due."""
        if math.isinf(self.rate):
            return [0.0] * count
        rng = random.Random(self.seed)
        now, due = 0.0, []
        for _ in range(count):
            due.append(now)
            now += rng.gammavariate(self.burstiness, 1.0 / (self.rate * self.burstiness))
        return due


async def run_load(
    url: str,
    bodies: list[dict[str, Any]],
    pace: Pace,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 3600.0,
    on_done: Callable[[Outcome], object] = lambda _: None,
) -> tuple[list[Outcome], float]:
    """Send every body to `url` at the pace; outcomes in the same order, and the seconds it all took."""
    import aiohttp  # here, so that `octavo bench --help` does not wait for it

    limit = asyncio.Semaphore(pace.concurrency or len(bodies) or 1)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        start = time.perf_counter()

        async def one(body: dict[str, Any], due: float) -> Outcome:
            await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
            async with limit:
                outcome = await send(session, url, body)
            on_done(outcome)
            return outcome

        outcomes = await asyncio.gather(*(one(body, due) for body, due in zip(bodies, pace.arrivals(len(bodies)))))
        return list(outcomes), time.perf_counter() - start


async def send(session: "aiohttp.ClientSession", url: str, body: dict[str, Any]) -> Outcome:
    """One streamed request. Errors are told in the outcome, never raised."""
    import aiohttp

    outcome = Outcome()
    start = last = time.perf_counter()
    try:
        async with session.post(url, json=body) as response:
            if response.status != 200:
                outcome.error = f"HTTP {response.status}: {(await response.content.read(300)).decode(errors='replace')}"
                return outcome
            buffer = b""
            async for chunk in response.content.iter_any():
                now = time.perf_counter()
                *lines, buffer = (buffer + chunk).split(b"\n")
                if len(buffer) > MAX_LINE_BYTES:
                    raise ValueError("a line without end")
                for line in lines:
                    if line.startswith(b"data: {") and _note(outcome, json.loads(line[6:])):
                        if math.isnan(outcome.ttft):
                            outcome.ttft = now - start
                        else:
                            outcome.itl.append(now - last)
                        last = now
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.e2e = last - start
    if outcome.error is None and math.isnan(outcome.ttft):
        outcome.error = "the stream ended without any text"
    return outcome


def _note(outcome: Outcome, event: dict[str, Any]) -> bool:
    """Take in one event; true if it brought text."""
    if "error" in event:
        outcome.error = str(event["error"])[:300]
        return False
    if usage := event.get("usage"):
        outcome.tokens, outcome.prompt_len = usage["completion_tokens"], usage["prompt_tokens"]
    return any(_text(choice) for choice in event.get("choices", ()))


def _text(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""
