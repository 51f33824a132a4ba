"""The anthropic package: tools, thoughts and the helper that streams."""

from typing import Any

import anthropic
from clients_kit import Scripted, calls

TURN: Any = [{"role": "user", "content": "hello"}]
LOOK: Any = {
    "name": "look",
    "description": "Look at a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


def client(server: Scripted) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def test_tools_and_back(server: Scripted) -> None:
    own = client(server)
    server.say(calls("look", place="Ulm"))
    for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "look"}):
        done = own.messages.create(model="tiny", max_tokens=200, messages=TURN, tools=[LOOK], tool_choice=choice)  # type: ignore[arg-type]
        assert done.stop_reason == "tool_use"
    use: Any = done.content[-1]
    assert (use.name, use.input) == ("look", {"place": "Ulm"})
    server.say("It is fine.")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sun"}
    turns: Any = [*TURN, {"role": "assistant", "content": done.content}, {"role": "user", "content": [result]}]
    after = own.messages.create(model="tiny", max_tokens=200, messages=turns, tools=[LOOK])
    assert after.content[0].text == "It is fine."  # type: ignore[union-attr]


def test_a_stream_with_everything(server: Scripted) -> None:
    server.say("<think>\nwhere?\n</think>\n\nLet me see." + calls("look", place="Ulm"))
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    with client(server).messages.stream(
        model="tiny", max_tokens=2000, messages=TURN, tools=[LOOK], thinking=thinking
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert {"thinking", "text", "input_json", "content_block_stop", "message_stop"} <= kinds
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[0].thinking.strip() == "where?"  # type: ignore[union-attr]
    assert final.content[2].input == {"place": "Ulm"}  # type: ignore[union-attr]
