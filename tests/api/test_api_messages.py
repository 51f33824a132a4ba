"""Anthropic's endpoints, and Anthropic's client against them."""

import json
from typing import Any

import anthropic
import pytest
from api_live import Answer, Live, backend, config


def message(live: Live, content: Any = "hello", **fields: Any) -> Answer:
    body = {"model": "tiny", "max_tokens": 6, "messages": [{"role": "user", "content": content}], **fields}
    return live.post("/v1/messages", body)


def prompt_of(live: Live) -> str:
    return str(live.tokenizer.decode(live.engine.requests[-1].tokens, skip_special=False))


def test_a_whole_message(live: Live) -> None:
    live.engine.cached_tokens = 4
    body = message(live, system="be brief").json
    assert body["type"] == "message"
    assert body["stop_reason"] == "max_tokens"
    assert [block["type"] for block in body["content"]] == ["text"]
    usage = body["usage"]
    assert usage["cache_read_input_tokens"] == 4
    assert usage["input_tokens"] + 4 == len(live.engine.requests[-1].tokens)
    assert usage["output_tokens"] == 6
    assert prompt_of(live).startswith("<|im_start|>system\nbe brief<|im_end|>")


def test_a_stream_builds_the_whole(live: Live) -> None:
    whole = message(live).json
    answer = message(live, stream=True)
    events = [json.loads(line[6:]) for line in answer.body.decode().split("\n") if line.startswith("data: ")]
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert events[0]["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert events[-2]["usage"] == whole["usage"]


def test_stop_sequences(live: Live) -> None:
    text = message(live, max_tokens=40).json["content"][0]["text"]
    stop = next(char for char in text[5:] if char.isalnum())
    body = message(live, max_tokens=40, stop_sequences=[stop]).json
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", stop)


def test_count_tokens(live: Live) -> None:
    counted = live.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hello"}]}).json
    message(live)
    assert counted == {"input_tokens": len(live.engine.requests[-1].tokens)}


def test_what_counts_is_what_is_sent(live: Live) -> None:
    turn = {"messages": [{"role": "user", "content": "hello"}]}
    whole = live.post("/v1/messages/count_tokens", {**turn, "max_tokens": 5, "temperature": 0.5, "nonsense": 1})
    assert whole.headers["x-octavo-ignored"] == "nonsense"
    less = live.post("/v1/messages/count_tokens", {**turn, "add_generation_prompt": False})
    assert less.json["input_tokens"] < whole.json["input_tokens"]
    tool = {"name": "f", "input_schema": {}}
    for fields, needle in (
        ({"tools": [tool, tool]}, "tools[1].name is"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"mcp_servers": [{"url": "http://a"}]}, "mcp_servers"),
    ):
        answer = live.post("/v1/messages/count_tokens", {**turn, **fields})
        assert (answer.status, answer.json["error"]["message"][: len(needle)]) == (400, needle)


def test_a_conversation_with_tools_reaches_the_template(live: Live) -> None:
    tools = [{"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "how are you", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "let me see"},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a server"}]},
                {"type": "text", "text": "well?"},
            ],
        },
    ]
    answer = live.post(
        "/v1/messages", {"max_tokens": 2, "messages": messages, "tools": tools, "tool_choice": {"type": "none"}}
    )
    assert answer.status == 200, answer.body
    prompt = prompt_of(live)
    assert prompt.index("let me see") < prompt.index("<|im_start|>tool\na server") < prompt.index("well?")


@pytest.mark.parametrize(
    ("fields", "needle"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "needs a tool_use_id"),
        ({"output_format": {"type": "json_schema", "schema": {"type": "strng"}}}, "output_format.schema.type"),
        ({"chat_template_kwargs": {"a": 1}, "seed": 1 << 70}, "seed"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "input_schema"),
        ({"temperature": 9.0}, "temperature"),
        ({"n": 2}, "one answer"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format must be of type json_schema"),
        ({"output_config": {"effort": "most"}}, "output_config.effort must be one of high, low, max"),
        ({"output_format": {"type": "xml"}}, "output_format must be of type json_schema"),
        ({"max_completion_tokens": 5}, "it is called max_tokens here"),
        ({"stop": ["a"]}, "it is called stop_sequences here"),
        ({"logprobs": True}, "there is none here"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"tools": [{"name": "f", "input_schema": {"type": "strng"}}]}, "tools[0].input_schema"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"mcp_servers": [{"type": "url", "url": "http://127.0.0.1"}]}, "mcp_servers is not supported"),
        ({"container": "c"}, "container is not supported"),
    ],
)
def test_errors_have_anthropics_form(live: Live, fields: dict[str, Any], needle: str) -> None:
    answer = message(live, **fields)
    assert answer.status == 400, answer.body
    body = answer.json
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert needle in body["error"]["message"]
    assert body["request_id"] == answer.headers["x-request-id"]
    assert not live.engine.requests


def test_rules_that_leave_no_token_are_the_callers_fault_midway_too(live: Live) -> None:
    live.engine.fail_after, live.engine.fail_code, live.engine.fail_name = 2, 400, "no_token_left"
    assert b'"type":"invalid_request_error"' in message(live, stream=True).body
    assert message(live).status == 400
    assert live.post("/v1/responses", {"input": "a", "max_output_tokens": 9}).error["code"] == "no_token_left"


def test_arguments_of_the_template_stand_beside_what_it_is_told_of_thinking(live: Live) -> None:
    assert message(live, chat_template_kwargs={"enable_thinking": True, "x": 1}).status == 200
    assert "x-octavo-ignored" not in message(live, chat_template_kwargs=None).headers


def test_a_failure_in_the_middle(live: Live) -> None:
    live.engine.fail_after = 2
    assert b"event: error\ndata: {" in message(live, stream=True).body
    assert message(live).json["error"]["type"] == "api_error"


def client(live: Live, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=live.url, api_key=key, max_retries=0)


def test_the_anthropic_client(live: Live) -> None:
    turn: Any = [{"role": "user", "content": "hello"}]
    own = client(live)
    whole = own.messages.create(model="tiny", max_tokens=6, messages=turn)
    with own.messages.stream(model="tiny", max_tokens=6, messages=turn) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == "max_tokens"
    assert own.messages.count_tokens(model="tiny", messages=turn).input_tokens == whole.usage.input_tokens
    with pytest.raises(anthropic.BadRequestError) as caught:
        own.messages.create(model="tiny", max_tokens=6, messages=turn, extra_body={"temperature": 3.0})
    assert "temperature" in str(caught.value)
    with pytest.raises(anthropic.NotFoundError):
        own.messages.create(model="nope", max_tokens=6, messages=turn)


async def test_the_anthropic_client_async(live: Live) -> None:
    async with anthropic.AsyncAnthropic(base_url=live.url, api_key="none", max_retries=0) as own:
        turn: Any = [{"role": "user", "content": "hello"}]
        events = [
            event.type
            async for event in await own.messages.create(model="tiny", max_tokens=3, messages=turn, stream=True)
        ]
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"


def test_the_clients_key() -> None:
    with Live(config(api_key=["sk-right"]), backend()) as keyed:
        turn: Any = [{"role": "user", "content": "hello"}]
        assert client(keyed, "sk-right").messages.create(model="tiny", max_tokens=1, messages=turn).content
        with pytest.raises(anthropic.AuthenticationError):
            client(keyed, "sk-wrong").messages.create(model="tiny", max_tokens=1, messages=turn)
