"""More than the engine can do, through a real engine process: who is refused, how fast, and who is not held up."""

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from api_live import Answer, Live, backend, config
from msgspec.structs import replace

from octavo.engine.client import EngineClient
from octavo.serve.calls import Backend

FAKES = Path(__file__).parents[1] / "unit" / "engine"
STEP_S = 0.01


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """Two rows, forty places to wait, ten milliseconds a step, two keys."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), str(Path(__file__).parent)]))
    monkeypatch.syspath_prepend(str(FAKES))
    from engine_fakes import config as engine_config

    with Live(config(api_key=["key-heavy", "key-light"]), None) as live:

        async def start() -> EngineClient:
            conf = engine_config(latency_s=STEP_S, max_waiting=40, max_num_seqs=2)
            conf = replace(conf, scheduler=replace(conf.scheduler, scheduling_policy="fair"))
            return await EngineClient.launch(conf, assembly="fake_main:wide", log_level="error")

        engine = asyncio.run_coroutine_threadsafe(start(), live.loop).result(60)
        text = backend(engine.ready.max_model_len).text
        live.loop.call_soon_threadsafe(live.service.attach, Backend(engine, text))
        while live.get("/ready").status != 200:
            time.sleep(0.01)
        try:
            yield live
        finally:
            asyncio.run_coroutine_threadsafe(engine.close(), live.loop).result(20)
    sys.modules.pop("engine_fakes", None)


def ask(live: Live, key: str, tokens: int = 10) -> tuple[Answer, float]:
    begin = time.monotonic()
    body = {"prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
    answer = live.call("POST", "/v1/completions", body, {"Authorization": f"Bearer key-{key}"}, timeout=60)
    return answer, time.monotonic() - begin


def test_what_does_not_fit_is_told_so_at_once_and_the_rest_is_served(busy: Live) -> None:
    with ThreadPoolExecutor(120) as pool:
        found = list(pool.map(lambda _: ask(busy, "heavy"), range(120)))
    counts = Counter(answer.status for answer, _ in found)
    assert set(counts) == {200, 429}
    assert counts[200] >= 42
    for answer, _ in found:
        if answer.status == 429:
            assert answer.error["code"] == "overloaded"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
    refused = sorted(seconds for answer, seconds in found if answer.status == 429)
    served = sorted(seconds for answer, seconds in found if answer.status == 200)
    assert refused[len(refused) // 2] < served[-1] / 2
    assert ask(busy, "light")[0].status == 200
    assert busy.get("/ready").status == 200


def test_a_flood_of_one_key_does_not_hold_up_another(busy: Live) -> None:
    done: list[int] = []

    def flood() -> None:
        done.append(ask(busy, "heavy", 20)[0].status)

    threads = [threading.Thread(target=flood) for _ in range(36)]
    for thread in threads:
        thread.start()
    while busy.service.stats().waiting < 20:
        time.sleep(0.005)
    answer, _ = ask(busy, "light", 10)
    assert answer.status == 200
    left = len(threads) - len(done)
    for thread in threads:
        thread.join()
    assert left >= 10, "twenty were waiting when it came, and it went before at least half of them"
