"""llama-index, by its class for servers like OpenAI's."""

import pytest
from clients_kit import Scripted

like = pytest.importorskip("llama_index.llms.openai_like")
core = pytest.importorskip("llama_index.core.llms")


def test_talk(server: Scripted) -> None:
    server.say("It is fine.")
    own = like.OpenAILike(
        model="tiny",
        api_base=f"{server.url}/v1",
        api_key="none",
        is_chat_model=True,
        max_retries=0,
        context_window=4096,
    )
    turn = [core.ChatMessage(role="user", content="hello")]
    assert own.chat(turn).message.content == "It is fine."
    assert "".join(part.delta or "" for part in own.stream_chat(turn)) == "It is fine."
    plain = own.__class__(model="tiny", api_base=f"{server.url}/v1", api_key="none", is_chat_model=False, max_retries=0)
    assert plain.complete("hello").text == "It is fine."
