"""litellm, as a client of either API."""

from typing import Any

import pytest
from clients_kit import Scripted, calls

litellm = pytest.importorskip("litellm")

TURN: Any = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def ask(server: Scripted, provider: str, **fields: Any) -> Any:
    base = f"{server.url}/v1" if provider == "openai" else server.url
    return litellm.completion(
        model=f"{provider}/tiny", api_base=base, api_key="none", messages=TURN, max_tokens=200, num_retries=0, **fields
    )


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_talk(server: Scripted, provider: str) -> None:
    server.say("It is fine.")
    assert ask(server, provider).choices[0].message.content == "It is fine."
    parts = [chunk.choices[0].delta.content or "" for chunk in ask(server, provider, stream=True)]
    assert "".join(parts) == "It is fine."


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_tools(server: Scripted, provider: str) -> None:
    server.say(calls("look", at="Ulm"))
    done = ask(server, provider, tools=[TOOL]).choices[0]
    assert done.finish_reason == "tool_calls"
    assert done.message.tool_calls[0].function.name == "look"


def test_faults(server: Scripted) -> None:
    with pytest.raises(litellm.BadRequestError):
        ask(server, "openai", temperature=7)
