"""The description of the API, the page that shows it, pages of other sites, and streams that wait."""

import asyncio
import re
from typing import Any

import openai
import pytest
from api_live import Live, backend, config
from openai.types.chat import completion_create_params as chat_params

from octavo.serve import sse, web
from octavo.serve.openai.fields import REFUSED, SILENT
from octavo.serve.openai.schema import ChatRequest
from octavo.serve.table import ENDPOINTS


def test_every_route_is_described(live: Live) -> None:
    doc = live.get("/openapi.json").json
    described = {(path, method.upper()) for path, item in doc["paths"].items() for method in item}
    routes = {(re.sub(r":\w+", "", endpoint.path), method) for endpoint in ENDPOINTS for method in endpoint.methods}
    assert described == routes
    names = [op["operationId"] for item in doc["paths"].values() for op in item.values()]
    assert len(set(names)) == len(names)
    text = live.get("/openapi.json").body.decode()
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= set(doc["components"]["schemas"])
    assert all(op["summary"] for item in doc["paths"].values() for op in item.values())


def test_the_page_needs_nothing_from_outside(live: Live) -> None:
    answer = live.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(rb"(src|href)=[\"']https?:", answer.body)
    assert web.security_policy("docs.html") != web.security_policy()


def test_docs_need_a_key_unless_opened() -> None:
    with Live(config(api_key=["k"]), backend()) as live:
        for path in ("/docs", "/openapi.json"):
            assert live.get(path).status == 401
            assert live.get(path, Authorization="Bearer k").status == 200
    with Live(config(api_key=["k"], public_docs=True), backend()) as live:
        assert live.get("/docs").status == 200
        assert live.get("/openapi.json").json["components"]["securitySchemes"]
        assert live.get("/v1/models").status == 401


def test_other_sites_come_in_by_name_only() -> None:
    with Live(config(allowed_origins=["https://app.example"]), backend()) as live:
        answer = live.get("/v1/models", Origin="https://app.example")
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert answer.headers["vary"] == "origin"
        other = live.get("/v1/models", Origin="https://evil.example")
        assert other.status == 403
        assert "access-control-allow-origin" not in other.headers
        asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "DELETE"}
        flight = live.call("OPTIONS", "/v1/files/x", None, asked)
        assert flight.status == 204
        assert flight.headers["access-control-allow-methods"] == "DELETE, GET"
        assert "authorization" in flight.headers["access-control-allow-headers"]
        asked["Origin"] = "https://evil.example"
        assert live.call("OPTIONS", "/v1/files/x", None, asked).status == 405


def test_no_cors_without_the_flag(live: Live) -> None:
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    assert live.call("OPTIONS", "/v1/completions", None, asked).status == 405
    assert not [name for name in live.get("/health").headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_stream_that_waits_says_so(live: Live, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.05)
    live.engine.delay_s = 0.3
    turn = [{"role": "user", "content": "a"}]
    asked: dict[str, Any] = {"messages": turn, "max_tokens": 2}
    body = {**({"input": turn, "max_output_tokens": 2} if "responses" in path else asked), "stream": True}
    raw = live.post(path, body).body
    assert (b"event: ping" if "messages" in path else b": waiting\n\n") in raw
    assert b'"finish_reason":"length"' in raw or b"incomplete" in raw or b"max_tokens" in raw


def test_every_field_of_openais_client_is_known() -> None:
    fields = set(chat_params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    known = set(ChatRequest.__struct_fields__) | SILENT | set(REFUSED)
    assert fields <= known, fields - known


def test_log_probabilities_of_named_tokens(live: Live) -> None:
    asked: dict[str, Any] = {"logprob_token_ids": [5, 7, 300], "max_tokens": 2}
    chat = live.chat("a", logprobs=True, **asked).json["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in chat] == [3, 3]
    lines = live.complete("a", logprobs=1, return_tokens_as_token_ids=True, **asked).json["choices"][0]["logprobs"]
    assert {"token_id:5", "token_id:7", "token_id:300"} <= set(lines["top_logprobs"][0])
    assert live.chat("a", **asked).error["param"] == "logprob_token_ids"
    assert live.chat("a", logprobs=True, logprob_token_ids=[10**6]).error["param"] == "logprob_token_ids"
    assert live.chat("a", logprobs=True, logprob_token_ids=[1] * 200).error["param"] == "logprob_token_ids"


def test_prompt_log_probabilities_are_streamed(live: Live) -> None:
    for call in (live.chat, live.complete):
        whole = call("hello", prompt_logprobs=2, max_tokens=2, n=2).json
        chunks = [c for c in call("hello", prompt_logprobs=2, max_tokens=2, n=2, stream=True).events if c != "[DONE]"]
        if call == live.chat:
            found = [chunk["prompt_logprobs"] for chunk in chunks if "prompt_logprobs" in chunk]
            assert found == [whole["prompt_logprobs"]]
        else:
            found = [c["prompt_logprobs"] for chunk in chunks for c in chunk["choices"] if "prompt_logprobs" in c]
            assert found == [choice["prompt_logprobs"] for choice in whole["choices"]]


def test_a_model_without_marks_has_no_suffix(live: Live) -> None:
    answer = live.complete("a", suffix="b")
    assert (answer.status, answer.error["param"]) == (400, "suffix")
    assert live.complete("a", suffix="", max_tokens=1).status == 200
    assert live.chat("a", suffix="b").error["param"] == "suffix"


async def test_openais_stream_helper(live: Live) -> None:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        stops: Any = {"stop_token_ids": list(range(256))}
        async with client.chat.completions.stream(model="tiny", messages=messages, extra_body=stops) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_completion()
        assert final.choices[0].finish_reason == "stop"
        assert "chunk" in kinds
        both = await asyncio.gather(
            *(client.completions.create(model="tiny", prompt="a", max_tokens=4) for _ in range(2))
        )
        assert both[0].choices[0].text == both[1].choices[0].text
