"""Chat's chunks as other dialects tell them: calls, thoughts and text, whole and streamed, from the same steps."""

import json
from typing import Any

import msgspec

from octavo.serve.anthropic.blocks import MessageBuilder
from octavo.serve.responses.builder import ResponseBuilder
from octavo.serve.responses.items import messages_of
from octavo.serve.responses.schema import InputItem
from octavo.serve.turns import Step, TurnReader

USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 9,
    "total_tokens": 19,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    return msgspec.json.encode({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def call(index: int, **fields: Any) -> list[dict[str, Any]]:
    id = fields.pop("id", None)
    return [{"index": index, "id": id, "type": "function", "function": fields}]


CHUNKS = [
    chunk(role="assistant", content=""),
    chunk(reasoning="let me ", reasoning_content="let me "),
    chunk(reasoning="think"),
    chunk(content="I will "),
    chunk(content="look."),
    chunk(tool_calls=call(0, id="c1", name="look", arguments="")),
    chunk(tool_calls=call(0, arguments='{"at":')),
    chunk(tool_calls=call(0, arguments="1}")),
    chunk(tool_calls=call(1, id="c2", name="wait", arguments="{}")),
    chunk("tool_calls"),
    msgspec.json.encode({"choices": [], "usage": USAGE}),
]


def steps() -> tuple[TurnReader, list[Step]]:
    reader = TurnReader()
    return reader, [step for each in CHUNKS for step in reader.feed(each)]


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: ")]


def test_messages() -> None:
    reader, found = steps()
    builder = MessageBuilder("msg_1", "m")
    streamed = events(
        builder.begin(reader.usage) + b"".join(builder.feed(step) for step in found) + builder.finish(reader.usage)
    )
    body = builder.message(reader.usage)
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
    reader, found = steps()
    builder = ResponseBuilder({"id": "resp_1", "output": []})
    streamed = events(builder.begin() + b"".join(builder.feed(step) for step in found) + builder.finish(reader.usage))
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
    _, found = steps()
    builder = ResponseBuilder({"id": "resp_1", "output": []})
    for step in found:
        builder.feed(step)
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
    reader = TurnReader()
    cut = [chunk(tool_calls=call(0, id="c", name="f", arguments='{"a": [1,')), chunk("length")]
    for step in [step for each in cut for step in reader.feed(each)]:
        builder.feed(step)
        response.feed(step)
    assert builder.message(reader.usage)["content"][0]["input"] == {}
    assert builder.message(reader.usage)["stop_reason"] == "max_tokens"
    response.finish(reader.usage)
    assert response.response["output"][0]["status"] == "incomplete"
    assert response.response["output"][0]["arguments"] == '{"a": [1,'
