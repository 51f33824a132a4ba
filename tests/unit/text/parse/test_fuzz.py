"""Any text: no exception, nothing depends on the cut, nothing is lost, and the time grows with the length alone."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parse_kit import parser, say, tool_parser

from octavo.text.parse.registry import REASONING_PARSERS, TOOL_PARSERS, reasoning_parser

NAMES = TOOL_PARSERS.names()
SCRAPS = [
    *'{}[]()<>:;,"\'\\=|', "\n", " ", "a", "0", "-1.5e3", "é", "😀", "null", "true", "now", "write", "get_weather", "\\u00e9",
    '"name"', '"arguments"', '"parameters"', '{"name": "now", "arguments": {', '{"text": "', "[now(", "a=1",
    "<function=write>", "<parameter=text>", "</parameter>", "</function>", "```json", "call:now{", "functions.now:0",
    "functools", "to=functions.now", "<arg_key>", "assistant", "analysis", "final", "<tool", "</tool_", "<think>", "</think>",
]  # fmt: skip


def texts(name: str) -> st.SearchStrategy[str]:
    marks = list(tool_parser(name).marks)
    return st.lists(st.sampled_from(SCRAPS + marks * 4) | st.text(max_size=3), max_size=30).map("".join)


@pytest.mark.parametrize("name", NAMES)
def test_fuzz(name: str) -> None:
    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(texts(name), st.data())
    def check(text: str, data: st.DataObject) -> None:
        thoughts = data.draw(st.sampled_from([None, "qwen3"])) if name != "openai" else None
        whole = say([text], tools=name, thoughts=thoughts)
        assert say(text, tools=name, thoughts=thoughts) == whole
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
        assert say(pieces, tools=name, thoughts=thoughts) == whole
        if not whole.calls and name != "openai" and thoughts is None:
            assert whole.text == text

    check()


def hostile(name: str, size: int) -> dict[str, str]:
    """Long texts of each kind that has made parsers slow."""
    marks = "".join(tool_parser(name).marks)
    first = tool_parser(name).marks[0]
    open_call = {
        "hermes": '<tool_call>{"name": "write", "arguments": ',
        "qwen3_coder": "<tool_call><function=write><parameter=text>",
        "glm45": "<tool_call>write<arg_key>text</arg_key><arg_value>",
        "llama3_json": '{"name": "write", "parameters": ',
        "pythonic": "[write(text=",
        "openai": "<|channel|>commentary to=functions.write<|message|>",
        "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write<｜tool▁sep｜>",
        "gemma4": "<|tool_call>call:write{text:",
    }.get(name, first)
    units = {
        "words": "lorem ipsum ", "spaces": " ", "newlines": "\n", "brackets": "[", "braces": "{", "half": first[:-1], "mark": first,
        "marks": marks, "quotes": '"', "backslashes": "\\", "items": "[1],", "lines": "\n{", "lists": "\n[",
    }  # fmt: skip
    found = {key: unit * (size // len(unit)) for key, unit in units.items()}
    bodies = {
        "string": '{"text": "' + "x" * size,
        "escapes": '{"text": "' + "\\n" * (size // 2),
        "numbers": '{"text": [' + "1," * (size // 2),
        "deep": '{"text": ' + "[" * size,
        "keys": "{" + '"k": 1, ' * (size // 8),
        "nested": '{"text": [' + '{"a": [1]}, ' * (size // 12),
        "digits": '{"text": ' + "9" * size,
        "space": '{"text": ' + " " * size,
        "raw": "y" * size,
        "python": "'" + "z" * size,
    }
    return found | {key: open_call + body for key, body in bodies.items()}


@pytest.mark.parametrize("name", NAMES)
def test_long_texts_take_linear_time(name: str) -> None:
    """Anything for long, whole and in pieces of a token's size: far from what squares would take."""
    slow = {}
    for kind, text in hostile(name, 1 << 15).items():
        for width in (len(text), 7):
            own = parser(tools=name)
            begin = time.process_time()
            for start in range(0, len(text), width):
                own.feed(text[start : start + width])
            own.finish()
            spent = time.process_time() - begin
            if spent > 0.4:
                slow[f"{kind}/{width}"] = round(spent, 2)
    assert not slow


@pytest.mark.parametrize("kind", ["words", "half", "mark", "string", "escapes", "numbers", "nested", "deep"])
def test_a_megabyte(kind: str) -> None:
    own = parser(tools="hermes")
    text = hostile("hermes", 1 << 20)[kind]
    begin = time.process_time()
    own.feed(text)
    own.finish()
    assert time.process_time() - begin < 1.0  # tens of milliseconds where nothing else runs


@pytest.mark.parametrize("name", sorted(set(REASONING_PARSERS.names()) - {"openai_gptoss"}))
def test_thoughts_fuzz(name: str) -> None:
    dialect = reasoning_parser(name)
    scraps = [*dialect.marks, *dialect.ends, "<", "think", "\n", " ", "a", "Here is", "[", "é"]

    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(st.sampled_from(scraps), max_size=16).map("".join), st.booleans())
    def check(text: str, opened: bool) -> None:
        whole = say([text], thoughts=name, opened=opened)
        assert say(text, thoughts=name, opened=opened) == whole
        if not whole.reasoning and not opened and not text.lstrip().startswith(dialect.openings):
            assert whole.text == text

    check()
