"""The chat page in Chromium: talk, settings, forms, tools, thoughts, keys, charts."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from api_live import Live
from api_textkit import tokenizer
from conftest import served

from octavo.grammar.spec import RIDER, decode_spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TOOL = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as real

    return real(locator)


def says(live: Live, *texts: str) -> None:
    """The next answers, one a request; the last one stays."""
    lines = [[*tokenizer().encode(text, add_special=False), *tokenizer().eos_ids] for text in texts]
    begun = len(live.engine.requests)

    def next_token(tokens: Sequence[int]) -> int:
        line = lines[min(len(live.engine.requests) - begun, len(lines)) - 1]
        return line[min(len(tokens) - len(live.engine.requests[-1].tokens), len(line) - 1)]

    live.engine.next_token = next_token


def ask(page: Any, text: str = "hello") -> Any:
    """Sends a message and waits for the end of its answer."""
    before = page.locator(".assistant").count()
    page.fill("#text", text)
    page.press("#text", "Enter")
    answer = page.locator(".assistant").nth(before)
    expect(answer.locator(".note")).to_be_visible()
    return answer


def settings(page: Any) -> None:
    if page.locator("#settings").is_hidden():
        page.click("#open-settings")


def test_an_answer_is_set_as_markdown_and_its_speed_is_said(page: Any, live: Live) -> None:
    says(live, "# Two\n\n- **one** `x`\n- *two*\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\ncode <b>\n```\n> said")
    expect(page.locator("#model")).to_have_value("tiny")
    answer = ask(page)
    expect(answer.locator("h3")).to_have_text("Two")
    expect(answer.locator("li strong")).to_have_text("one")
    expect(answer.locator("li em")).to_have_text("two")
    expect(answer.locator("td").last).to_have_text("2")
    expect(answer.locator("pre code")).to_have_text("code <b>\n".strip())
    expect(answer.locator("blockquote")).to_have_text("said")
    expect(answer.locator(".note")).to_contain_text("first token")
    ask(page, "and now?")
    prompt = tokenizer().decode(live.engine.requests[-1].tokens, skip_special=False)
    assert "# Two" in prompt
    assert "and now?" in prompt


def test_what_a_model_says_is_never_markup(page: Any, live: Live) -> None:
    says(live, '<img src=x onerror="document.title=1"> [go](javascript:alert) [there](https://a.example/x)')
    answer = ask(page, "<script>document.title = 2</script>")
    expect(answer).to_contain_text('<img src=x onerror="document.title=1">')
    assert answer.locator("img").count() == 0
    assert [each.get_attribute("href") for each in answer.locator("a").all()] == ["https://a.example/x"]
    assert answer.locator("a").get_attribute("rel") == "noopener noreferrer nofollow"
    assert page.title() == "Octavo"


def test_sampling_reaches_the_engine_and_survives_a_reload(page: Any, live: Live) -> None:
    settings(page)
    for name, value in {"temperature": "0.3", "top_k": "7", "seed": "5", "max_tokens": "4", "min_p": "0.1"}.items():
        page.fill(f"#{name}", value)
    page.fill("#system", "You are terse")
    page.fill("#key", "a-secret")
    expect(page.locator("#hint")).to_contain_text("system message")
    ask(page)
    sampling = live.engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.3, 7, 4)
    assert sampling.min_p == pytest.approx(0.1)
    assert "You are terse" in tokenizer().decode(live.engine.requests[-1].tokens, skip_special=False)
    page.reload()
    settings(page)
    expect(page.locator("#temperature")).to_have_value("0.3")
    assert "secret" not in page.evaluate("() => JSON.stringify({...localStorage})")
    page.click("#reset")
    expect(page.locator("#temperature")).to_have_value("")


def test_an_answer_in_json(page: Any, live: Live) -> None:
    says(live, '{"name": "a", "year": 1}')
    settings(page)
    page.select_option("#form_kind", "json_schema")
    answer = ask(page)
    assert decode_spec(live.engine.requests[-1].riders[RIDER]).kind.startswith("json")
    expect(answer.locator("pre code")).to_have_text('{\n  "name": "a",\n  "year": 1\n}')
    page.fill("#form_text", "{not json")
    expect(page.locator("#trouble")).to_contain_text("The schema is no JSON")
    sent = len(live.engine.requests)
    expect(ask(page)).to_contain_text("The schema is no JSON")
    assert len(live.engine.requests) == sent


def test_a_tool_is_called_and_answered(page: Any, live: Live) -> None:
    says(live, '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "It is three.")
    settings(page)
    page.fill("#tools", json.dumps(TOOL))
    answer = ask(page)
    expect(answer.locator(".call b")).to_have_text("add")
    expect(answer.locator(".call code")).to_have_text('{\n  "a": 1\n}')
    answer.locator(".call input").fill("three")
    answer.locator(".call input").press("Enter")
    expect(page.locator(".assistant").nth(1)).to_contain_text("It is three.")
    assert "three" in tokenizer().decode(live.engine.requests[-1].tokens, skip_special=False)


def test_thoughts_are_folded(page: Any, live: Live) -> None:
    says(live, "<think>\nhow now\n</think>\n\nSo.")
    answer = ask(page)
    expect(answer.locator(".body")).to_have_text("So.")
    expect(answer.locator("details div")).to_be_hidden()
    answer.locator("summary").click()
    expect(answer.locator("details div")).to_contain_text("how now")


def test_stop_and_again(page: Any, live: Live) -> None:
    says(live, "word " * 400)
    live.engine.delay_s = 0.02
    page.fill("#text", "go")
    page.press("#text", "Enter")
    expect(page.locator(".assistant .body")).to_contain_text("word word")
    page.click("#send")
    expect(page.locator(".assistant .note")).to_contain_text("stopped")
    assert live.quiet()
    live.engine.delay_s = 0.0
    says(live, "another")
    page.get_by_role("button", name="Again").click()
    expect(page.locator(".assistant .body")).to_have_text("another")
    assert page.locator(".assistant").count() == 1


def test_an_error_is_shown(page: Any, live: Live) -> None:
    live.engine.fail_after = 3
    answer = ask(page)
    expect(answer).to_have_class("turn assistant error")
    expect(answer.locator(".note")).to_contain_text("could not finish")


def test_live_figures(page: Any, live: Live) -> None:
    page.click("#open-live")
    expect(page.locator("#plan")).to_contain_text("2,048 tokens")
    live.engine.delay_s = 0.01
    says(live, "word " * 60)
    for _ in range(2):
        ask(page)
    cards = page.locator(".card")
    assert cards.count() == 6
    expect(cards.nth(0).locator("h3 span")).not_to_have_text("–")
    expect(cards.nth(3).locator("h3 span")).to_contain_text("ms", timeout=15_000)
    assert cards.nth(0).locator("path").count() >= 1


def test_a_key_is_asked_for(browser: Any) -> None:
    with served(api_key=["right"]) as live:
        made = browser.new_context().new_page()
        made.goto(live.url)
        expect(made.locator("#state")).to_have_text("needs an API key")
        expect(made.locator("#key")).to_be_focused()
        made.fill("#key", "right")
        made.press("#key", "Tab")
        expect(made.locator("#model")).to_have_value("tiny")
        made.click("#open-live")
        expect(made.locator("#plan")).to_contain_text("2,048")
        made.context.close()


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_nothing_runs_off_the_side(page: Any, live: Live, width: int) -> None:
    says(live, "| a | b |\n|---|---|\n| " + "long " * 60 + " | 2 |\n\n```\n" + "x" * 400 + "\n```")
    page.set_viewport_size({"width": width, "height": 700})
    ask(page)
    for button in ("#open-settings", "#open-live"):
        page.click(button)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        page.click(button)


def test_the_theme_can_be_chosen(page: Any) -> None:
    def paper() -> str:
        return str(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))

    light = paper()
    page.click("#theme")
    assert paper() == light
    page.click("#theme")
    assert paper() != light
    page.reload()
    assert paper() != light
