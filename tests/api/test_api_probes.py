"""Liveness, readiness and progress are three questions."""

import pytest
from api_live import Live


def statuses(live: Live) -> tuple[int, int, int]:
    health, ready, progress = (live.get(path).status for path in ("/health", "/ready", "/health?progress"))
    return health, ready, progress


def test_all_is_well(live: Live) -> None:
    assert statuses(live) == (200, 200, 200)
    assert live.get("/health?progress").json["status"] == "idle"


def test_while_the_engine_restarts(live: Live) -> None:
    live.engine.restarting = True
    assert statuses(live) == (200, 503, 503)
    assert live.chat(max_tokens=3).status == 200, "those that come all the same are served"


def test_an_engine_that_does_not_move(live: Live) -> None:
    live.engine.still_s = 61.0
    assert statuses(live) == (200, 503, 503)
    live.engine.still_s = 7.0
    assert statuses(live) == (200, 200, 200)
    assert live.get("/health?progress=5").status == 503
    told = live.get("/health?progress=10").json
    assert (told["status"], told["seconds_since_step"]) == ("working", 7.0)


def test_a_dead_engine(live: Live) -> None:
    live.engine.dead = True
    assert statuses(live) == (503, 503, 503)


@pytest.mark.parametrize("query", ["progress=x", "progress=0", "progress=1&progress=2"])
def test_a_patience_that_is_none(live: Live, query: str) -> None:
    assert live.get(f"/health?{query}").status == 400


def test_what_was_lived_through_is_counted(live: Live) -> None:
    live.engine.survival.restarts, live.engine.survival.replayed, live.engine.survival.failed = 2, 30, 1
    live.engine.survival.last_restart_s = 1.5
    lines = live.get("/metrics").body.decode().splitlines()
    for line in (
        'octavo:engine_restarts_total{model_name="tiny"} 2.0',
        'octavo:requests_replayed_total{model_name="tiny"} 30.0',
        'octavo:requests_failed_by_crash_total{model_name="tiny"} 1.0',
        'octavo:engine_restart_seconds{model_name="tiny"} 1.5',
    ):
        assert line in lines
    assert live.get("/health?progress").json["engine_restarts"] == 2
