"""pydantic-ai and openai-agents: a tool is called, its result goes back, an answer comes."""

from typing import Any

import openai
import pytest
from clients_kit import Scripted, after_tool, calls


@pytest.fixture
def ready(server: Scripted) -> Scripted:
    server.say(after_tool(calls("look", place="Ulm"), "It is fine."))
    return server


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
async def test_pydantic_ai(ready: Scripted, kind: str) -> None:
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    model = getattr(models, kind)("tiny", provider=providers.OpenAIProvider(base_url=f"{ready.url}/v1", api_key="none"))
    agent = ai.Agent(model)
    seen = []

    @agent.tool_plain
    def look(place: str) -> str:
        seen.append(place)
        return "sun"

    assert (await agent.run("hello")).output == "It is fine."
    async with agent.run_stream("hello") as stream:
        assert await stream.get_output() == "It is fine."
    assert seen == ["Ulm", "Ulm"]


@pytest.mark.parametrize("kind", ["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
async def test_openai_agents(ready: Scripted, kind: str) -> None:
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{ready.url}/v1", api_key="none", max_retries=0)
    seen = []

    def look(place: str) -> str:
        """Look at a place."""
        seen.append(place)
        return "sun"

    model = getattr(agents, kind)(model="tiny", openai_client=client)
    agent: Any = agents.Agent(name="a", model=model, tools=[agents.function_tool(look)])
    assert (await agents.Runner.run(agent, "hello")).final_output == "It is fine."
    run = agents.Runner.run_streamed(agent, "hello")
    kinds = [event.type async for event in run.stream_events()]
    assert run.final_output == "It is fine."
    assert "raw_response_event" in kinds
    assert seen == ["Ulm", "Ulm"]
    await client.close()
