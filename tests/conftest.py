"""Shared by all tests. Without a GPU, Triton kernels run under its interpreter; it must be told before its import."""

import logging
import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest


def _gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if not _gpu():
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def _logger_as_it_was() -> Iterator[None]:
    """Commands that a test runs in its own process set up the package's logger."""
    logger = logging.getLogger("octavo")
    before = logger.propagate, logger.level, list(logger.handlers)
    yield
    logger.propagate, logger.level, logger.handlers[:] = before
