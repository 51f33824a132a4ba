"""Five times what the server can do: it does as much as it can, and says no to the rest at once."""

import asyncio
import statistics
import time

from drills import drill
from faults_server import LONG, Client, quiet, serving

FAKE = {"latency_s": 0.02, "num_blocks": 600, "max_num_seqs": 8, "max_waiting": 16}
BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
RATE = 8 / (20 * 0.02)  # requests a second: eight at once, twenty steps each
SECONDS = 20.0


class Load:
    """What came of the requests of one stretch of time."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.statuses: list[int] = []
        self.refusals: list[float] = []  # seconds
        self.waits: list[float] = []  # of those that were served
        self.begin = time.monotonic()

    async def ask(self) -> None:
        begin = time.monotonic()
        async with self.client.session.post(
            self.client.server.url + "/v1/completions", json=BODY, timeout=LONG
        ) as reply:
            await reply.read()
            self.statuses.append(reply.status)
            if reply.status == 429:
                assert int(reply.headers["Retry-After"]) >= 1
                self.refusals.append(time.monotonic() - begin)
            else:
                self.waits.append(time.monotonic() - begin)

    @property
    def goodput(self) -> float:
        """Served a second."""
        return self.statuses.count(200) / (time.monotonic() - self.begin)

    async def at_capacity(self) -> None:
        async def worker() -> None:
            while time.monotonic() < self.begin + SECONDS:
                await self.ask()

        await asyncio.gather(*(worker() for _ in range(12)))

    async def beyond(self) -> None:
        tasks, gap = [], 1 / (5 * RATE)
        for place in range(int(SECONDS / gap)):
            tasks.append(asyncio.create_task(self.ask()))
            await asyncio.sleep(max(0.0, self.begin + place * gap - time.monotonic()))
        await asyncio.gather(*tasks)


async def test_five_times_what_it_can_do() -> None:
    what = f"requests come five times as fast as they can be served, for {SECONDS:.0f} s"
    promise = "95% of the best throughput, 429 with Retry-After for the rest in 100 ms (median), no 5xx"
    with drill("L1", what, promise) as d:
        found: list[tuple[float, float]] = []
        for _ in d.seeds():
            async with serving(fake=FAKE) as client:
                best = Load(client)
                await best.at_capacity()
                most = best.goodput
                await quiet(client)
                load = Load(client)
                await load.beyond()
                found.append((load.goodput / most, statistics.median(load.refusals)))
                share, refusal = min(each[0] for each in found), max(each[1] for each in found)
                d.note = (
                    f"{share:.0%} of {most:.1f} a second; {len(load.statuses)} asked, {len(load.refusals)} refused"
                    f" after {refusal * 1000:.0f} ms; the slowest served after {max(load.waits):.1f} s"
                )
                await quiet(client)
            assert set(load.statuses) == {200, 429}
            assert share >= 0.95
            assert refusal < 0.1
