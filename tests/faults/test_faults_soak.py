"""Mixed load with random faults, for long; memory stays where it was.

OCTAVO_SOAK_MINUTES is its length; `python scripts/faults.py --soak 30` sets it.
"""

import asyncio
import json
import os
import signal
import statistics
import time
from random import Random
from typing import Any

import psutil
import pytest
from drills import drill
from faults_clients import ask_raw, nonsense, vanish
from faults_server import FAKE, Client, bodies, quiet, serving, whole

MINUTES = float(os.environ.get("OCTAVO_SOAK_MINUTES", "30"))
WORKERS = 12
FLAT = 1.02


class Soak:
    """Workers that check every answer against what it was at first, a nemesis, and a look at memory."""

    def __init__(self, client: Client, known: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        self.client = client
        self.known = known
        self.end = time.monotonic() + MINUTES * 60
        self.checked = self.aborted = self.refused = self.crashed = 0
        self.samples: list[tuple[float, float, int]] = []  # bytes of the API process, of the engine, the engine's id
        self.restarts = 0

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end

    async def work(self, random: Random) -> None:
        while not self.over:
            body, want = random.choice(self.known)
            dice = random.random()
            if dice < 0.15:
                sock = await ask_raw(self.client, {**body, "stream": True}, random.choice([50, None, None]))
                await asyncio.sleep(random.random() * 0.3)
                vanish(sock)
                self.aborted += 1
            elif dice < 0.25:
                assert 400 <= await nonsense(self.client, random) < 500
                self.refused += 1
            else:
                got = await self.client.streamed(body) if dice < 0.7 else await self.client.whole(body)
                assert got == want, (body, got, want)
                self.checked += 1

    async def nemesis(self, random: Random) -> None:
        """Kills, stops and starts; seldom enough for the default limit of restarts."""
        gap = max(20.0, MINUTES * 60 / 12)
        while not self.over:
            await asyncio.sleep(gap * (0.5 + random.random()))
            if self.over:
                return
            engine = self.client.server.engine
            if random.random() < 0.6:
                engine.kill()
                self.restarts += 1
            else:
                engine.send_signal(signal.SIGSTOP)
                await asyncio.sleep(random.random() * 2)
                engine.send_signal(signal.SIGCONT)

    async def watch(self) -> None:
        while not self.over:
            await asyncio.sleep(min(10.0, MINUTES * 2))
            server, engine = self.client.server.process.pid, self.client.server.engine.pid
            self.samples.append((own_bytes(server), own_bytes(engine), engine))


def own_bytes(pid: int) -> float:
    """What the process has written to, swap included: resident memory alone hides what was swapped out.

    Not psutil's uss: it counts pages of a library's file too while no other process has that file mapped. Each engine
    that dies, and any other Python on the machine that ends, moves 0.5 to 3.5 MB of them without the API process
    doing anything.
    """
    try:
        maps = psutil.Process(pid).memory_maps()
    except psutil.Error:
        return 0.0
    return float(sum(each.anonymous + each.swap for each in maps))


@pytest.mark.slow
@pytest.mark.timeout(0)
async def test_soak() -> None:
    what = f"{MINUTES:g} min of {WORKERS} clients: streams, wholes, constraints, aborts, nonsense; kills and stops"
    with drill("S1", what, "every answer as at first; memory flat within 2%; no block left") as d:
        faults = [{"stage": "result", "at": at} for at in range(1000, 100_000, 1500)]  # in each process
        faults += [{"stage": "forward", "kind": "memory", "at": 5000}]
        async with serving(fake=FAKE, faults=faults, recovery={"max_engine_restarts": 100}) as client:
            asked = [body for seed in range(4) for body in bodies(Random(seed), 9)]
            known = list(zip(asked, await whole(client, asked)))
            await warm_up(client)
            soak = Soak(client, known)
            workers = [soak.work(Random(seed)) for seed in range(WORKERS)]
            await asyncio.gather(*workers, soak.nemesis(Random(99)), soak.watch())
            await quiet(client)
            await conserved(client)
            assert await client.metric("octavo:engine_restarts_total") == soak.restarts
            assert await client.metric("octavo:requests_failed_by_crash_total") == 0
        growth = compare([api for api, *_ in soak.samples])
        longest = max({pid for *_, pid in soak.samples}, key=[pid for *_, pid in soak.samples].count)
        engine = compare([held for _, held, pid in soak.samples if pid == longest])
        d.note = json.dumps(
            {
                "answers checked": soak.checked,
                "aborted": soak.aborted,
                "refused": soak.refused,
                "restarts": soak.restarts,
                "API memory last/first": round(growth, 4),
                "engine memory last/first": round(engine, 4),
            }
        )
        assert growth <= FLAT
        assert engine <= FLAT


async def warm_up(client: Client) -> None:
    """Until what is cached is cached: some thousands of odd bodies add megabytes, then no more."""
    for first in range(0, 4000, 20):
        await asyncio.gather(*(nonsense(client, Random(first + i)) for i in range(20)))


async def conserved(client: Client) -> None:
    """Each sequence that was begun has ended for one reason, and none twice."""
    begun = await client.total("octavo:request_params_n_sum")
    ended = await client.total("octavo:request_success_total")
    assert begun == ended, (begun, ended)


def compare(samples: list[float]) -> float:
    """A process's memory in the last fifth over that in the second: the first warms its caches."""
    own = [sample for sample in samples if sample]
    part = max(1, len(own) // 5)
    return statistics.median(own[-part:]) / statistics.median(own[part : 2 * part] or own[:part])
