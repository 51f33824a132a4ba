"""A server whose model says what the test wants, for clients that people really use."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))

from clients_kit import Scripted


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    with Scripted(tmp_path_factory.mktemp("kept")) as server:
        yield server


@pytest.fixture
def server(shared: Scripted) -> Iterator[Scripted]:
    shared.reset()
    yield shared
    assert shared.quiet()
