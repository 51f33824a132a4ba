"""What models say in each dialect, and what it means; each text whole, by characters and cut at every place."""

import json
from typing import Any

import pytest
from parse_kit import say_all_ways

from octavo.text.parse.registry import TOOL_PARSERS

Call = tuple[str, Any]
WEATHER: Call = ("get_weather", {"city": "Paris"})
NOW: Call = ("now", {})
NESTED: Call = ("get_weather", {"where": {"lat": -1.5, "tags": [1, [], {}]}, "exact": True, "days": 3})
ODD: Call = ("write", {"text": 'é "q" \\ 漢\n\t<b>{}[]</b> 😀'})


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def obj(call: Call, key: str = "arguments") -> str:
    return f'{{"name": "{call[0]}", "{key}": {dumps(call[1])}}}'


def hermes(*calls: Call) -> str:
    return "\n".join(f"<tool_call>\n{obj(call)}\n</tool_call>" for call in calls)


def plain(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def qwen3_coder(*calls: Call) -> str:
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in arguments.items())
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )


def glm45(*calls: Call) -> str:
    return "\n".join(
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n" for key, value in arguments.items()
        )
        + "</tool_call>"
        for name, arguments in calls
    )


def llama3_json(*calls: Call) -> str:
    return "<|python_tag|>" + "; ".join(obj(call, "parameters") for call in calls)


def pythonic(*calls: Call) -> str:
    listed = (f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})" for name, args in calls)
    return "[" + ", ".join(listed) + "]"


def mistral(*calls: Call) -> str:
    return "[TOOL_CALLS][" + ", ".join(map(obj, calls)) + "]"


def deepseek_v3(*calls: Call) -> str:
    each = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumps(args)}\n```<｜tool▁call▁end｜>"
        for name, args in calls
    )
    return "<｜tool▁calls▁begin｜>" + "\n".join(each) + "<｜tool▁calls▁end｜>"


def deepseek_v31(*calls: Call) -> str:
    each = (f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(args)}<｜tool▁call▁end｜>" for name, args in calls)
    return "<｜tool▁calls▁begin｜>" + "".join(each) + "<｜tool▁calls▁end｜>"


def kimi_k2(*calls: Call) -> str:
    each = (
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{dumps(args)}<|tool_call_end|>"
        for number, (name, args) in enumerate(calls)
    )
    return "<|tool_calls_section_begin|>" + "".join(each) + "<|tool_calls_section_end|>"


def granite(*calls: Call) -> str:
    return "<|tool_call|>[" + ", ".join(map(obj, calls)) + "]"


def phi4_mini_json(*calls: Call) -> str:
    return "functools[" + ", ".join(map(obj, calls)) + "]"


def harmony(*calls: Call) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(args)}<|call|>"
        for name, args in calls
    )


def gemma_value(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma_value(each, quote)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma_value(each, quote) for each in value) + "]"
    return dumps(value)


def functiongemma(*calls: Call) -> str:
    return "".join(
        f"<start_function_call>call:{name}{gemma_value(args, '<escape>')}<end_function_call>" for name, args in calls
    )


def gemma4(*calls: Call) -> str:
    quote = '<|"|>'
    return "".join(f"<|tool_call>call:{name}{gemma_value(args, quote)}<tool_call|>" for name, args in calls)


WRITERS = {
    "hermes": hermes,
    "qwen3_coder": qwen3_coder,
    "glm45": glm45,
    "llama3_json": llama3_json,
    "pythonic": pythonic,
    "mistral": mistral,
    "deepseek_v3": deepseek_v3,
    "deepseek_v31": deepseek_v31,
    "kimi_k2": kimi_k2,
    "granite": granite,
    "phi4_mini_json": phi4_mini_json,
    "openai": harmony,
    "functiongemma": functiongemma,
    "gemma4": gemma4,
}
LEAD = {"openai": "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant", "pythonic": "Let me look.\n"}


def test_every_dialect_has_golden_texts() -> None:
    assert set(TOOL_PARSERS.names()) == set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    "calls",
    [[WEATHER], [NOW], [WEATHER, NOW], [NESTED], [ODD], [NOW, ODD, NESTED]],
    ids=["one", "empty", "two", "nested", "odd", "three"],
)
def test_calls(name: str, calls: list[Call]) -> None:
    said = say_all_ways(WRITERS[name](*calls), tools=name)
    assert said.parsed == calls
    assert said.text == said.reasoning == ""
    assert len(set(said.ids)) == len(calls)


@pytest.mark.parametrize("name", WRITERS)
def test_text_before_is_kept(name: str) -> None:
    said = say_all_ways(LEAD.get(name, "Let me look.\n\n") + WRITERS[name](WEATHER), tools=name)
    assert said.text == "Let me look."
    assert said.parsed == [WEATHER]


@pytest.mark.parametrize("name", sorted(set(WRITERS) - {"openai"}))
def test_text_alone_is_left_as_it_is(name: str) -> None:
    for text in ("", " ", "Hello.\n", '\n\n a < b, [1, 2] and {"a": 1}\n[x]\n{}\n', "<tool", "functool", "[TOOL_"):
        said = say_all_ways(text, tools=name)
        assert said.text == text
        assert said.calls == []


@pytest.mark.parametrize(
    "name", sorted(set(WRITERS) - {"openai", "llama3_json", "pythonic", "mistral", "granite", "phi4_mini_json"})
)
def test_text_between_and_behind_is_kept(name: str) -> None:
    text = "One. " + WRITERS[name](WEATHER) + " Two. " + WRITERS[name](NOW) + "\nThree."
    said = say_all_ways(text, tools=name)
    assert said.parsed == [WEATHER, NOW]
    assert said.text.split() == ["One.", "Two.", "Three."]


MALFORMED = {
    "hermes": [
        '{"name": "John", "arguments": {}}',
        '{"name": "now"}',
        '{"name": "now", ',
        "<tool_call>\nhello\n</tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
        "<tool_call>",
        '<tool_call>{"x": 1}',
    ],
    "qwen3_coder": [
        "<tool_call>\nhello\n</tool_call>",
        "<function=>x",
        "<tool_call><function=a b>",
        "<tool_call><functio",
    ],
    "glm45": ["<tool_call>two words\n</tool_call>", "<tool_call></tool_call>", "<tool_call>name<arg_val"],
    "llama3_json": ['{"name": "John", "parameters": {}}', "<|python_tag|>print(1)", '{"name": "now"}', "{"],
    "pythonic": ["[1, 2, 3]", "[unknown(a=1)]", "[now", "<|python_start|>x = 1"],
    "mistral": ["[TOOL_CALLS] ", "[TOOL_CALLS][1]", "[TOOL_CALLS]get weather", "[TOOL_CALLS]now[ARGS]3"],
    "deepseek_v3": ["<｜tool▁calls▁begin｜>hm", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n[]\n```"],
    "deepseek_v31": ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now{}", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>"],
    "kimi_k2": ["<|tool_calls_section_begin|>x", "<|tool_call_begin|>functions.now:0{}"],
    "granite": ["<|tool_call|>[]", "<|tool_call|>hello", '<|tool_call|>{"name": '],
    "phi4_mini_json": ["functools is a module", "functools[]", "functools[1]"],
    "functiongemma": ["<start_function_call>now{}", "<start_function_call>call:now()<end_function_call>"],
    "gemma4": ["<|tool_call>now{}", "<|tool_call>call:now"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in MALFORMED.items() for text in texts])
def test_what_is_no_call_comes_back_as_text(name: str, text: str) -> None:
    said = say_all_ways(text, tools=name)
    assert said.text == text
    assert said.calls == []


@pytest.mark.parametrize("name", WRITERS)
def test_cut_short_inside_arguments(name: str) -> None:
    """A call that had begun stays one, with the arguments that were there."""
    text = WRITERS[name](("write", {"text": "abcdef"}))
    said = say_all_ways(text[: text.index("def")], tools=name)
    assert [call[0] for call in said.calls] == ["write"]
    assert name == "pythonic" or "abc" in said.calls[0][1]
    assert said.text == ""


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1}</tool_call>', [("now", {"a": 1})]),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}}}\n</tool_call>', [NOW]),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>', [NOW]),
        ("hermes", "\n" + obj(WEATHER) + "\n" + hermes(NOW), [WEATHER, NOW]),
        ("hermes", '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>', [WEATHER]),
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', [WEATHER]),
        ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', [NOW]),
        ("hermes", '<tool_call><tool_call>{"name": "now", "arguments": {}}</tool_call>', [NOW]),
        ("hermes", '<tool_call>{"name": "write", "arguments": {"text": "a\nb\\d"}}</tool_call>', [("write", {"text": "a\nb\\d"})]),
        ("qwen3_coder", "<function=now>\n</function>", [NOW]),
        ("qwen3_coder", "<tool_call><function=write><parameter=text>a\n<parameter=note>null</function></tool_call>",
         [("write", {"text": "a", "note": None})]),
        ("qwen3_coder", "<tool_call>\n<function=write>\n<parameter=any>\n{'a'}\n</parameter>\n</tool_call>", [("write", {"any": "{'a'}"})]),
        ("glm45", "<tool_call>now</tool_call>", [NOW]),
        ("glm45", "<tool_call>write<arg_key>any</arg_key><arg_value>[1]</arg_value></tool_call>", [("write", {"any": [1]})]),
        ("llama3_json", obj(WEATHER, "parameters"), [WEATHER]),
        ("llama3_json", "\n" + obj(WEATHER, "parameters") + "\n" + obj(NOW, "parameters"), [WEATHER, NOW]),
        ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}', [WEATHER, NOW]),
        ("mistral", '[TOOL_CALLS]get_weather{"city": "Paris"}', [WEATHER]),
        ("granite", '<tool_call>{"name": "now", "arguments": {}}</tool_call>', [NOW]),
        ("phi4_mini_json", '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>', [NOW]),
        ("deepseek_v31", '<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>', [NOW]),
        ("pythonic", '<|python_start|>[now()]<|python_end|>', [NOW]),
        ("pythonic", "[write(text='''a\"b''', any=(1, .5, -07, 1_000, None, true))]",
         [("write", {"text": 'a"b', "any": [1, 0.5, -7, 1000, None, True]})]),
        ("openai", " to=functions.now<|channel|>commentary<|message|>{}", [NOW]),
    ],
)  # fmt: skip
def test_other_ways_to_say_it(name: str, text: str, calls: list[Call]) -> None:
    said = say_all_ways(text, tools=name)
    assert said.parsed == calls
    assert said.text.strip() in ("", "<tool_call>")


def test_ids_that_the_model_gives() -> None:
    assert say_all_ways(kimi_k2(NOW, WEATHER), tools="kimi_k2").ids == ["functions.now:0", "functions.get_weather:1"]
    text = "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}"
    assert say_all_ways(text, tools="mistral").ids == ["abcdefghi"]
