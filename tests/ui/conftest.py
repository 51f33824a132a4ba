"""A real Chromium on the real page, served over a fake engine that says what the test wants."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))

from api_live import Live, backend, config
from api_textkit import TEMPLATE, tokenizer

from octavo.text.parse.speech import Speech

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's Chromium, or playwright's own; CHROMIUM names another. Without one the tests are skipped."""
    api = pytest.importorskip("playwright.sync_api")
    api.expect.set_options(timeout=30_000)  # the usual 5 s are short on a machine with other work
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with api.sync_playwright() as playwright:
        try:
            made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        except api.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield made
        made.close()


def served(**serve: Any) -> Live:
    back = backend()
    back.text.speech = Speech(tokenizer(), TEMPLATE, tool_parser="hermes", reasoning_parser="qwen3")
    return Live(config(**serve), back)


@pytest.fixture(scope="session")
def shared() -> Iterator[Live]:
    with served() as live:
        yield live


@pytest.fixture
def live(shared: Live) -> Iterator[Live]:
    shared.reset()
    yield shared
    shared.engine.delay_s = 0.0
    assert shared.quiet()


@pytest.fixture
def page(browser: Any, live: Live) -> Iterator[Any]:
    """The page, open; at the end nothing may have been logged as an error or asked of another server."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    made = context.new_page()
    made.set_default_timeout(15_000)
    wrong: list[str] = []
    made.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("request", lambda sent: None if sent.url.startswith((live.url, "data:")) else wrong.append(sent.url))
    made.goto(live.url)
    yield made
    context.close()
    assert not wrong
