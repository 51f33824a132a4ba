"""Thoughts: marked, opened by the prompt, left open, and followed by calls."""

import pytest
from parse_kit import say, say_all_ways
from test_golden import NOW, hermes, kimi_k2

from octavo.text.parse.registry import REASONING_ALIASES, REASONING_PARSERS, reasoning_parser

TAGS = sorted(set(REASONING_PARSERS.names()) - {"openai_gptoss"})


@pytest.mark.parametrize("name", TAGS)
def test_marked_thoughts(name: str) -> None:
    dialect = reasoning_parser(name)
    for opening in dialect.openings:
        for closing in dialect.closings:
            said = say_all_ways(f"\n{opening}\nWell, 2 < 3.\n\n So.\n{closing}\n\nFive.\n", thoughts=name)
            assert (said.reasoning, said.text) == ("Well, 2 < 3.\n\n So.", "Five.\n")


@pytest.mark.parametrize("name", TAGS)
def test_opened_by_the_prompt(name: str) -> None:
    dialect = reasoning_parser(name)
    assert dialect.opened("<|im_start|>assistant\n" + dialect.openings[0] + "\n")
    assert not dialect.opened(f"x{dialect.openings[0]}\n\n{dialect.closings[0]}\n\n")
    said = say_all_ways(f"Hm é.\n{dialect.closings[0]} Five.", thoughts=name, opened=True)
    assert (said.reasoning, said.text) == ("Hm é.", "Five.")
    said = say_all_ways(f"{dialect.openings[0]}Hm.", thoughts=name, opened=True)  # opened twice, never closed
    assert (said.reasoning, said.text) == ("Hm.", "")


@pytest.mark.parametrize("name", TAGS)
def test_none(name: str) -> None:
    closing = reasoning_parser(name).closings[0]
    assert say_all_ways(" Plain text.\n", thoughts=name).text == " Plain text.\n"
    said = say_all_ways(f"I write {closing} here.", thoughts=name)
    assert said.text == f"I write {closing} here."


def test_who_always_thinks() -> None:
    assert reasoning_parser("deepseek_r1").opened("<｜Assistant｜>")
    assert not reasoning_parser("deepseek_r1").opened("<｜Assistant｜><think>\n</think>\n")
    assert not reasoning_parser("qwen3").opened("<|im_start|>assistant\n")
    assert {reasoning_parser(name).openings[0] for name in REASONING_ALIASES} == {"<think>"}


def test_thoughts_then_calls() -> None:
    said = say_all_ways("<think>\nI call <tool_call>.\n</think>\n\n" + hermes(NOW), tools="hermes", thoughts="qwen3")
    assert said.reasoning == "I call <tool_call>."
    assert said.text == ""
    assert said.parsed == [NOW]


def test_a_call_ends_the_thoughts_of_kimi() -> None:
    said = say_all_ways("<think>Let me." + kimi_k2(NOW), tools="kimi_k2", thoughts="kimi_k2")
    assert (said.reasoning, said.text, said.parsed) == ("Let me.", "", [NOW])


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Five.<|return|>", "Hm.", "Five.", []),
        ("<|channel|>final<|message|>Five é.", "", "Five é.", []),
        ("<|channel|>analysis<|message|>Hm", "Hm", "", []),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}", "Hm.", "", [NOW]),
        ("<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>", "", "", [NOW]),
        ("<|channel|>commentary to=functions.now<|message|>not JSON<|call|>", "", "not JSON", []),
        ("<|channel|>commentary to=browser.open<|message|>{}<|end|>", "", "{}", []),
        ("No header at all.", "", "No header at all.", []),
        ("<|channel|>fin", "", "", []),
    ],
)  # fmt: skip
def test_harmony(text: str, reasoning: str, content: str, calls: list[object]) -> None:
    for of in ({"tools": "openai"},):
        said = say_all_ways(text, **of)
        assert (said.reasoning, said.text, said.parsed) == (reasoning, content, calls)


def test_thinking_is_known_while_it_lasts() -> None:
    from parse_kit import parser

    own = parser(thoughts="qwen3", opened=True)
    assert own.thinking
    own.feed("a")
    assert own.thinking
    own.feed("</think>")
    assert not own.thinking
    assert say(["a</think>b"], thoughts="qwen3", opened=True).text == "b"
