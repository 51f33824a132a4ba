"""The openai package: helpers that parse, stream and call tools."""

from typing import Any

import openai
import pytest
from clients_kit import Scripted, calls
from pydantic import BaseModel


class City(BaseModel):
    name: str
    people: int


LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
TURN: Any = [{"role": "user", "content": "hello"}]
JSON = '{"name": "Ulm", "people": 126000}'


def client(server: Scripted) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_parse(server: Scripted) -> None:
    server.say(JSON)
    done = client(server).chat.completions.parse(model="tiny", messages=TURN, response_format=City)
    assert done.choices[0].message.parsed == City(name="Ulm", people=126000)
    assert client(server).responses.parse(model="tiny", input="hello", text_format=City).output_parsed == City(
        name="Ulm", people=126000
    )


def test_a_parsed_stream(server: Scripted) -> None:
    server.say(JSON)
    with client(server).chat.completions.stream(model="tiny", messages=TURN, response_format=City) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.parsed == City(name="Ulm", people=126000)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "look"}}])
def test_tools(server: Scripted, choice: Any) -> None:
    server.say(calls("look", place="Ulm"))
    fields: Any = {"model": "tiny", "messages": TURN, "tools": [LOOK], "tool_choice": choice}
    done = client(server).chat.completions.create(**fields)
    call: Any = (done.choices[0].message.tool_calls or [])[0]
    assert done.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, call.function.arguments) == ("look", '{"place": "Ulm"}')
    with client(server).chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion()
    streamed: Any = (final.choices[0].message.tool_calls or [])[0]
    assert streamed.function.arguments == call.function.arguments


def test_responses_with_tools_and_thoughts(server: Scripted) -> None:
    server.say("<think>\nwhere?\n</think>\n\nLet me see." + calls("look", place="Ulm"))
    tool: Any = {"type": "function", **LOOK["function"]}  # type: ignore[dict-item]
    done = client(server).responses.create(model="tiny", input="hello", tools=[tool])
    kinds = [item.type for item in done.output]
    assert kinds == ["reasoning", "message", "function_call"]
    call: Any = done.output[-1]
    server.say("It is fine.")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    after = client(server).responses.create(model="tiny", input=[result], previous_response_id=done.id, tools=[tool])
    assert after.output_text == "It is fine."
    server.say(calls("look", place="Ulm"))
    with client(server).responses.stream(model="tiny", input="hello", tools=[tool]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert kinds[-1] == "response.completed"
    assert final.output[-1].arguments == '{"place": "Ulm"}'  # type: ignore[union-attr]


async def test_async(server: Scripted) -> None:
    server.say("fine weather")
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as own:
        stream = await own.chat.completions.create(model="tiny", messages=TURN, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream if c.choices]) == "fine weather"
        events = await own.responses.create(model="tiny", input="hello", stream=True)
        assert "".join([e.delta async for e in events if e.type == "response.output_text.delta"]) == "fine weather"
