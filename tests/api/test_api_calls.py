"""Tool calls and thoughts over HTTP: a fake engine that says what it is told, whole and streamed."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
from api_live import Live, backend, config
from api_textkit import TEMPLATE, tokenizer

from octavo.grammar.spec import RIDER, decode_spec
from octavo.text.parse.speech import Speech

TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "now"}},
]  # fmt: skip
CALLS = (
    '<think>\nTwo é calls.\n</think>\n\nOf course. <tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é\\n"}}\n'
    '</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def talk() -> Iterator[Live]:
    back = backend()
    back.text.speech = Speech(tokenizer(), TEMPLATE, tool_parser="hermes", reasoning_parser="qwen3")
    with Live(config(), back) as live:
        yield live


def says(live: Live, text: str) -> None:
    """From here on every sequence says `text` and ends."""
    line = [*tokenizer().encode(text, add_special=False), *tokenizer().eos_ids]

    def next_token(tokens: Sequence[int]) -> int:
        return line[min(len(tokens) - len(live.engine.requests[-1].tokens), len(line) - 1)]

    live.engine.next_token = next_token


def joined(events: list[Any]) -> dict[str, Any]:
    """A streamed message put together as OpenAI's clients do it."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "reasoning_content": "", "tool_calls": []}
    for event in events[:-1]:
        for choice in event["choices"]:
            delta = choice["delta"]
            for key in ("content", "reasoning", "reasoning_content"):
                message[key] += delta.get(key) or ""
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(message["tool_calls"]):
                    assert call["id"].startswith("call_")
                    assert call["type"] == "function"
                    message["tool_calls"].append(
                        {"id": call["id"], "type": "function", "function": {**call["function"]}}
                    )
                else:
                    assert set(call) == {"index", "function"}
                    assert set(call["function"]) == {"arguments"}
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            message["finish_reason"] = choice["finish_reason"]
    return message


def without_ids(calls: list[Any]) -> list[Any]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


@pytest.mark.parametrize("step", [1, 3, 50])
def test_calls_whole_and_streamed(talk: Live, step: int) -> None:
    says(talk, CALLS)
    talk.engine.step_tokens = step
    body = talk.chat(tools=TOOLS, max_tokens=500).json
    choice, message = body["choices"][0], body["choices"][0]["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "Of course."
    assert message["reasoning"] == message["reasoning_content"] == "Two é calls."
    calls = message["tool_calls"]
    assert without_ids(calls) == [("add", '{"a": 1, "b": "é\\n"}'), ("now", "{}")]
    assert len({call["id"] for call in calls}) == 2
    details = body["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] <= body["usage"]["completion_tokens"]
    streamed = joined(talk.chat(tools=TOOLS, max_tokens=500, stream=True).events)
    assert streamed["finish_reason"] == "tool_calls"
    assert without_ids(streamed["tool_calls"]) == without_ids(calls)
    for key in ("content", "reasoning", "reasoning_content"):
        assert streamed[key] == message[key]


def test_without_tools_calls_are_text(talk: Live) -> None:
    says(talk, CALLS.partition("</think>")[2].lstrip())
    talk.engine.step_tokens = 1
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = talk.chat(max_tokens=500, **fields).json["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"].startswith("Of course. <tool_call>")
        assert "tool_calls" not in choice["message"]


def test_one_call_where_only_one_may_be(talk: Live) -> None:
    says(talk, CALLS)
    for stream in (False, True):
        answer = talk.chat(tools=TOOLS, max_tokens=500, parallel_tool_calls=False, stream=stream)
        message = joined(answer.events) if stream else answer.json["choices"][0]["message"]
        assert without_ids(message["tool_calls"]) == [("add", '{"a": 1, "b": "é\\n"}')]
    assert talk.quiet()


def test_thoughts_can_be_left_out(talk: Live) -> None:
    says(talk, "<think>Hm.</think>Five.")
    message = talk.chat(max_tokens=100, include_reasoning=False).json["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Five.", "refusal": None}
    streamed = joined(talk.chat(max_tokens=100, include_reasoning=False, stream=True).events)
    assert (streamed["content"], streamed["reasoning"]) == ("Five.", "")


def test_cut_short(talk: Live) -> None:
    says(talk, CALLS)
    choice = talk.chat(tools=TOOLS, max_tokens=15).json["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning"]


def test_logprobs_are_not_lost(talk: Live) -> None:
    says(talk, CALLS)
    talk.engine.step_tokens = 1
    whole = talk.chat(tools=TOOLS, max_tokens=500, logprobs=True).json["choices"][0]["logprobs"]["content"]
    events = talk.chat(tools=TOOLS, max_tokens=500, logprobs=True, stream=True).events[:-1]
    streamed = [
        entry for event in events for c in event["choices"] if c["logprobs"] for entry in c["logprobs"]["content"]
    ]
    assert streamed == whole


def spec(live: Live, **fields: Any) -> Any:
    says(live, "x")
    assert live.chat(tools=TOOLS, max_tokens=50, **fields).status == 200
    rider = live.engine.requests[-1].riders.get(RIDER)
    return rider and decode_spec(rider)


def test_constraints_travel(talk: Live) -> None:
    assert spec(talk) is None
    required = spec(talk, tool_choice="required")
    assert '\\"add\\"' in required.source
    assert '\\"now\\"' in required.source
    named = spec(talk, tool_choice={"type": "function", "function": {"name": "now"}})
    assert '\\"add\\"' not in named.source
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "name": "add"}]},
    }
    assert '\\"now\\"' not in spec(talk, tool_choice=allowed).source
    both = spec(talk, response_format={"type": "json_object"})
    assert both.kind == "json_object"
    assert "answer" in both.around
    regex = spec(talk, structured_outputs={"regex": "a+"})
    assert (regex.kind, regex.source) == ("regex", "a+")
    assert "answer" in regex.around
    strict = [{"type": "function", "function": {**TOOLS[1]["function"], "strict": True}}]
    says(talk, "x")
    talk.chat(tools=strict, max_tokens=5)
    assert decode_spec(talk.engine.requests[-1].riders[RIDER]).after == ("<tool_call>",)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "gone"}}, "tools": TOOLS}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "allowed_tools"}, "tools": TOOLS}, "tool_choice.allowed_tools"),
        ({"thinking_token_budget": -5}, "thinking_token_budget"),
    ],
)  # fmt: skip
def test_what_cannot_be(talk: Live, fields: dict[str, Any], param: str) -> None:
    answer = talk.chat(max_tokens=5, **fields)
    assert answer.status == 400
    assert answer.error["param"] == param


def test_an_escape_in_arguments_that_is_half_of_a_pair(talk: Live) -> None:
    """The body has it within a string, where it is only text."""
    function = {"name": "f", "arguments": '{"a": "\\ud800"}'}
    messages = [
        {"role": "user", "content": "<|im_end|>"},
        {"role": "assistant", "tool_calls": [{"function": function}]},
    ]
    assert talk.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2}).status == 200
    assert talk.post("/tokenize", {"messages": messages}).status == 200


@pytest.mark.parametrize(
    ("kind", "value"),
    [("regex", "a+"), ("choice", ["a", "b"]), ("grammar", 'start: "a"'), ("json", {"type": "integer"})],
)
def test_a_bound_of_thoughts_goes_with_every_constraint(talk: Live, kind: str, value: Any) -> None:
    says(talk, "<think>Hm.</think>a")
    body = {"structured_outputs": {kind: value}, "max_tokens": 50}
    whole = talk.chat(thinking_token_budget=5, **body)
    assert whole.status == 200
    thoughts = decode_spec(talk.engine.requests[-1].riders[RIDER]).thoughts
    assert thoughts is not None
    assert (thoughts.closings, thoughts.opening, thoughts.most) == (("</think>",), "<think>", 5)
    message = whole.json["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("a", "Hm.")
    assert talk.chat(**body).status == 200
    free = decode_spec(talk.engine.requests[-1].riders[RIDER]).thoughts
    assert free is not None
    assert free.most is None


def test_no_dialect_no_promise(live: Live) -> None:
    answer = live.chat(tools=TOOLS, tool_choice="required")
    assert answer.status == 400
    assert "--tool-call-parser" in answer.error["message"]
    assert live.chat(tools=TOOLS, max_tokens=2).status == 200


def test_the_openai_client_reads_calls(talk: Live) -> None:
    says(talk, CALLS)
    client = openai.OpenAI(base_url=f"{talk.url}/v1", api_key="none", max_retries=0)
    given: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "max_tokens": 500}
    calls = client.chat.completions.create(**given).choices[0].message.tool_calls
    assert calls
    assert json.loads(calls[0].function.arguments) == {"a": 1, "b": "é\n"}  # type: ignore[union-attr]
    with client.chat.completions.stream(**given) as stream:
        final = stream.get_final_completion()
    again = final.choices[0].message.tool_calls
    assert again
    assert [call.function.name for call in again] == ["add", "now"]
