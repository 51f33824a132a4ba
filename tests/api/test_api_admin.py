"""An operator's paths: sleep, wake, and what probes and requests see meanwhile."""

import threading
import time

import pytest
from api_live import Live, backend, config

from octavo.cli import sleep, wake


@pytest.fixture(scope="module")
def live():
    with Live(config(), backend()) as server:
        yield server


@pytest.fixture(autouse=True)
def fresh(live):
    live.reset()


def post(live, path):
    return live.call("POST", path)


def get(live, path):
    return live.get(path)


def complete(live, **fields):
    return live.complete(**{"max_tokens": 4, **fields})


def test_sleep_and_wake_answer_as_vllm_does(live):
    assert get(live, "/is_sleeping").json == {"is_sleeping": False}
    answer = post(live, "/sleep?level=2")
    assert answer.status == 200
    assert answer.json["status"] == "sleeping"
    assert answer.json["level"] == 2
    assert answer.json["freed_bytes"] > 0
    assert get(live, "/is_sleeping").json == {"is_sleeping": True}
    assert post(live, "/wake_up?tags=weights").json == {"status": "sleeping", "tags_woken": ["weights"]}
    assert post(live, "/wake_up?tags=weights&tags=kv_cache").json["status"] == "awake"
    assert post(live, "/wake_up").json == {"status": "awake", "tags_woken": None}
    assert get(live, "/is_sleeping").json == {"is_sleeping": False}


def test_probes_tell_sleep_from_death(live):
    post(live, "/sleep")
    assert get(live, "/health").json == {"status": "asleep"}
    ready = get(live, "/ready")
    assert ready.status == 503
    assert "asleep (level 1)" in ready.error["message"]
    post(live, "/wake_up")
    assert get(live, "/ready").status == 200
    assert get(live, "/health").json == {"status": "ok"}


def test_a_request_that_comes_asleep_is_told_so(live):
    post(live, "/sleep")
    answer = complete(live)
    assert answer.status == 503
    assert answer.error["code"] == "asleep"
    assert int(answer.headers["retry-after"]) > 0
    assert complete(live, stream=True).status == 503
    assert live.chat(stream=True).error["code"] == "asleep"
    post(live, "/wake_up")
    assert complete(live).status == 200


@pytest.mark.parametrize(
    ("query", "param"), [("level=0", "level"), ("level=3", "level"), ("mode=drop", "mode"), ("timeout=-1", "timeout")]
)
def test_bad_parameters_are_named(live, query, param):
    answer = post(live, f"/sleep?{query}")
    assert (answer.status, answer.error["param"]) == (400, param)
    assert live.engine.commands == []


def test_bad_tags_are_named(live):
    assert post(live, "/wake_up?tags=weights,disk").error["param"] == "tags"


def test_a_refusal_is_the_engines_own_words_and_all_goes_on(live):
    live.engine.refusal = "level 1 would keep 15 GiB of weights in host memory; level 2 drops them"
    answer = post(live, "/sleep?level=1")
    assert answer.status == 409
    assert answer.error["message"] == live.engine.refusal
    assert [name for name, _ in live.engine.commands] == ["pause", "stats", "sleep", "resume"]
    assert complete(live).status == 200


def slow(live, delay_s=0.05, max_tokens=10):
    live.engine.delay_s = delay_s
    done = []
    thread = threading.Thread(target=lambda: done.append(complete(live, max_tokens=max_tokens)))
    thread.start()
    while not live.engine.open:
        time.sleep(0.005)
    return thread, done


def test_it_waits_for_those_who_run(live):
    thread, done = slow(live)
    assert post(live, "/sleep?level=2").status == 200
    thread.join()
    assert done[0].status == 200
    assert live.engine.commands[-1] == ("sleep", {"level": 2, "mode": "keep"})


@pytest.mark.parametrize(("query", "mode"), [("mode=abort", "abort"), ("mode=keep", "keep"), ("timeout=0", "keep")])
def test_it_does_not_wait_where_it_shall_not(live, query, mode):
    thread, _ = slow(live)
    post(live, f"/sleep?{query}")
    assert live.engine.open
    assert live.engine.commands[-1] == ("sleep", {"level": 1, "mode": mode})
    live.engine.asleep = 0
    thread.join()


def test_it_stays_awake_when_it_shall_wait_and_they_do_not_end(live):
    thread, _ = slow(live, max_tokens=30)
    answer = post(live, "/sleep?mode=wait&timeout=1")
    assert (answer.status, answer.error["code"]) == (409, "still_running")
    assert [name for name, _ in live.engine.commands][-1] == "resume"
    thread.join()


def test_the_command_line(live, capsys):
    assert sleep.COMMAND(["--url", live.url, "--level", "2", "--mode", "keep"]) == 0
    assert "asleep at level 2: 1 MiB given back" in capsys.readouterr().out
    assert live.engine.asleep == 2
    assert wake.COMMAND(["--url", live.url]) == 0
    assert capsys.readouterr().out.startswith("awake after")
    assert live.engine.asleep == 0


def test_a_server_that_wakes_on_requests_is_ready_asleep(live, monkeypatch):
    monkeypatch.setattr(type(live.service), "wakes_by_itself", True)
    post(live, "/sleep")
    assert get(live, "/ready").status == 200
