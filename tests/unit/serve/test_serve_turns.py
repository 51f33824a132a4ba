"""Chat's answer as other dialects tell it: calls, thoughts and text, whole and streamed, from the same steps."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from octavo.base.scores import TokenLogprobs, write
from octavo.serve.anthropic.blocks import MessageBuilder
from octavo.serve.openai.chat import _Chat
from octavo.serve.openai.schema import ChatRequest, Message
from octavo.serve.responses.builder import ResponseBuilder
from octavo.serve.responses.items import messages_of
from octavo.serve.responses.schema import InputItem
from octavo.serve.turns import CallArguments, CallBegun, Ended, Said, Step, Thought
from octavo.text.collect import TextDelta
from octavo.text.logprobs import Positions
from octavo.text.parse.base import Reasoning, Text, ToolArguments, ToolStart

TOTALS: Any = SimpleNamespace(
    num_prompt_tokens=10, cached_tokens=4, num_output_tokens=9, speaker=SimpleNamespace(reasoning_tokens=3, calls=[1])
)

STEPS: list[Step] = [
    Thought("let me "),
    Thought("think"),
    Said("I will ", []),
    Said("look.", []),
    CallBegun("c1", "look"),
    CallArguments('{"at":'),
    CallArguments("1}"),
    CallBegun("c2", "wait"),
    CallArguments("{}"),
    Ended("tool_calls", None),
]


class _Tokenizer:
    token_bytes = staticmethod({5: b"a"}.__getitem__)


TOKENIZER: Any = _Tokenizer()
POSITION = Positions(TOKENIZER, write([TokenLogprobs(5, -1.0, 1)]))
TOLD = msgspec.Raw(b'{"token":"a","logprob":-1.0,"bytes":[97],"top_logprobs":[]}')


@pytest.mark.parametrize(
    ("delta", "steps"),
    [
        (TextDelta("hi", [1]), [Said("hi", [])]),
        (TextDelta("", [1]), []),
        (TextDelta("", [1], events=[], logprobs=POSITION), [Said("", [TOLD])]),
        (TextDelta("hi", [1, 2], events=[Text("h"), Text("i")]), [Said("hi", [])]),
        (TextDelta("", [1], events=[Reasoning("hm"), ToolStart(0, "c", "f")]), [Thought("hm"), CallBegun("c", "f")]),
        (
            TextDelta("a", [1], POSITION, events=[ToolArguments(0, "{}"), Text("a")]),
            [CallArguments("{}"), Said("a", [TOLD])],
        ),
        (TextDelta("a", [1], finish_reason="stop", stop_reason="b"), [Said("a", []), Ended("tool_calls", "b")]),
        (TextDelta(finish_reason="length"), [Ended("length", None)]),
    ],
)
def test_what_a_delta_means(delta: TextDelta, steps: list[Step]) -> None:
    request = ChatRequest(messages=[Message(role="user", content="hi")])
    assert _Chat(TOKENIZER, request).steps(TOTALS, delta) == steps


def test_thoughts_that_nobody_wants() -> None:
    request = ChatRequest(messages=[Message(role="user", content="hi")], include_reasoning=False)
    assert _Chat(TOKENIZER, request).steps(TOTALS, TextDelta("", [1], events=[Reasoning("hm")])) == []


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: ")]


def test_messages() -> None:
    builder = MessageBuilder("msg_1", "m")
    streamed = events(b"".join(builder.take(TOTALS, [step]) for step in STEPS) + builder.finish())
    body = builder.message()
    assert body["content"] == [
        {"type": "thinking", "thinking": "let me think", "signature": ""},
        {"type": "text", "text": "I will look."},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}},
        {"type": "tool_use", "id": "c2", "name": "wait", "input": {}},
    ]
    assert body["stop_reason"] == "tool_use"
    assert body["usage"]["input_tokens"] == 6
    starts = [event["index"] for event in streamed if event["type"] == "content_block_start"]
    stops = [event["index"] for event in streamed if event["type"] == "content_block_stop"]
    assert starts == stops == [0, 1, 2, 3]
    deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    assert "".join(delta.get("partial_json", "") for delta in deltas) == '{"at":1}{}'
    assert {"type": "signature_delta", "signature": ""} in deltas


def test_responses() -> None:
    builder = ResponseBuilder({"id": "resp_1", "output": []})
    streamed = events(b"".join(builder.take(TOTALS, [step]) for step in STEPS) + builder.finish())
    assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))
    output = builder.response["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "let me think"}]
    assert (output[2]["call_id"], output[2]["name"], output[2]["arguments"]) == ("c1", "look", '{"at":1}')
    assert all(item["status"] == "completed" for item in output)
    assert builder.response["status"] == "completed"
    assert builder.response["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    deltas = [event for event in streamed if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(event["delta"] for event in deltas if event["output_index"] == 2) == '{"at":1}'
    done = [event["item"] for event in streamed if event["type"] == "response.output_item.done"]
    assert done == output


def test_an_output_is_the_next_input() -> None:
    builder = ResponseBuilder({"id": "resp_1", "output": []})
    builder.take(TOTALS, STEPS)
    items = msgspec.convert(builder.response["output"], list[InputItem])
    items += [InputItem(type="function_call_output", call_id="c1", output="a wall")]
    messages = messages_of(items)
    assert [message["role"] for message in messages] == ["assistant", "tool"]
    assert messages[0]["reasoning"] == "let me think"
    assert messages[0]["content"] == "I will look."
    assert [call["id"] for call in messages[0]["tool_calls"]] == ["c1", "c2"]
    assert messages[1] == {"role": "tool", "tool_call_id": "c1", "content": "a wall"}


def test_a_call_cut_short() -> None:
    builder, response = MessageBuilder("m", "m"), ResponseBuilder({"id": "r", "output": []})
    for each in (builder, response):
        each.take(TOTALS, [CallBegun("c", "f"), CallArguments('{"a": [1,'), Ended("length", None)])
    assert builder.message()["content"][0]["input"] == {}
    assert builder.message()["stop_reason"] == "max_tokens"
    response.finish()
    assert response.response["output"][0]["status"] == "incomplete"
    assert response.response["output"][0]["arguments"] == '{"a": [1,'
