"""Drills log what went wrong on purpose; nobody needs to see that twice."""

import logging

import pytest


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("octavo").setLevel(logging.CRITICAL)
    monkeypatch.setattr("octavo.engine.supervisor.BACKOFF_S", 0.02)
