"""langchain-openai, over chat completions and over the Responses API."""

from typing import Any

import pytest
from clients_kit import Scripted, after_tool, calls

chat_models = pytest.importorskip("langchain_openai.chat_models")


def model(server: Scripted, **fields: Any) -> Any:
    return chat_models.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", model="tiny", max_retries=0, temperature=0, **fields
    )


SCHEMA = {
    "title": "City",
    "description": "A city.",
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
    "additionalProperties": False,
}
TOOL = {
    "name": "look",
    "description": "Look.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
}


@pytest.mark.parametrize("responses", [False, True])
def test_talk(server: Scripted, responses: bool) -> None:
    server.say("It is fine.")
    own = model(server, use_responses_api=responses)
    done = own.invoke("hello")
    assert done.text == "It is fine."
    assert done.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.text for chunk in own.stream("hello")) == "It is fine."


@pytest.mark.parametrize("responses", [False, True])
def test_tools(server: Scripted, responses: bool) -> None:
    server.say(after_tool(calls("look", at="Ulm"), "It is fine."))
    own = model(server, use_responses_api=responses).bind_tools([TOOL])
    turns: list[Any] = [("user", "hello")]
    asked = own.invoke(turns)
    assert asked.tool_calls[0]["args"] == {"at": "Ulm"}
    result = {"role": "tool", "tool_call_id": asked.tool_calls[0]["id"], "content": "sun"}
    assert own.invoke([*turns, asked, result]).text == "It is fine."


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured(server: Scripted, method: str) -> None:
    city = {"name": "Ulm", "people": 126000}
    server.say(calls("City", **city) if method == "function_calling" else '{"name": "Ulm", "people": 126000}')
    assert model(server).with_structured_output(SCHEMA, method=method).invoke("hello as JSON") == city
