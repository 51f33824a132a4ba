"""A real server on a loopback port, with a fake engine and a tiny tokenizer behind it."""

from collections.abc import Iterator

import pytest
from api_live import Live, backend, config


@pytest.fixture(scope="session")
def shared() -> Iterator[Live]:
    with Live(config(), backend()) as live:
        yield live


@pytest.fixture
def live(shared: Live) -> Iterator[Live]:
    """The shared server with its engine's dials as they were made; after each test nothing may be left open."""
    shared.reset()
    yield shared
    shared.engine.delay_s = 0.0
    assert shared.quiet(), f"left open: {shared.engine.open}, admitted: {shared.service.limits.open}"
    shared.reset()
