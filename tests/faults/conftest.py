"""Which drills belong to the everyday run; the rest is marked slow and run by scripts/faults.py."""

import logging

import pytest

EVERYDAY = {
    "test_killed_mid_stream[9]",
    "test_an_exception_at_each_stage_of_a_step[result]",
    "test_an_exception_at_each_stage_of_a_step[update]",
    "test_the_request_that_kills_the_engine[result]",
    "test_what_comes_and_goes_during_a_restart",
    "test_close_during_a_restart_leaves_no_process",
    "test_clients_see_a_pause",
    "test_weights_that_are_no_numbers",
    "test_what_was_remembered_is_damaged",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/faults/" in item.nodeid.replace("\\", "/") and item.name not in EVERYDAY:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drills log what went wrong on purpose; nobody needs to see that twice."""
    logging.getLogger("octavo").setLevel(logging.CRITICAL)
    monkeypatch.setattr("octavo.engine.supervisor.BACKOFF_S", 0.02)
