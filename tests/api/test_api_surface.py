"""The endpoints beside generation, metrics, the page, and the openai client against all of it."""

import asyncio
import re

import msgspec
import openai
import pytest
from api_live import Live, backend, config

from octavo import __version__
from octavo.serve import web


def series(live: Live) -> dict[str, float]:
    found = {}
    for line in live.get("/metrics").body.decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def client(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


def test_models(live: Live) -> None:
    body = live.get("/v1/models").json
    assert [card["id"] for card in body["data"]] == ["tiny", "alias/of-it"]
    assert body["data"][0]["max_model_len"] == 2048
    assert live.get("/v1/models/alias/of-it").json["id"] == "alias/of-it"
    assert b"nowhere" not in live.get("/v1/models").body
    assert live.chat(model="alias/of-it", max_tokens=1).json["model"] == "alias/of-it"


def test_small_probes(live: Live) -> None:
    assert live.get("/version").json == {"version": __version__}
    for method in ("GET", "POST"):
        assert live.call(method, "/ping").status == 200
    assert live.call("HEAD", "/health").body == b""


def test_tokenize_and_back(live: Live) -> None:
    body = live.post("/tokenize", {"prompt": "hello there", "return_token_strs": True}).json
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"])
    assert body["max_model_len"] == 2048
    assert live.post("/detokenize", {"tokens": body["tokens"]}).json == {"prompt": "hello there"}
    chat = live.post("/tokenize", {"messages": [{"role": "user", "content": "hello"}]}).json
    live.chat("hello", max_tokens=1)
    assert live.engine.requests[-1].tokens == chat["tokens"]
    assert live.post("/tokenize", {"prompt": "a", "messages": []}).status == 400
    assert live.post("/tokenize", {}).status == 400
    assert live.post("/detokenize", {"tokens": [-1]}).error["param"].startswith("tokens")
    assert live.post("/detokenize", {"tokens": [10**6]}).error["param"].startswith("tokens")
    assert live.post("/detokenize", {"tokens": "abc"}).status == 400


def test_metrics_count_what_happened(live: Live) -> None:
    before = series(live)
    live.chat(max_tokens=5)
    live.chat(max_tokens=5, stream=True, n=2)
    live.get("/no/such/path")
    live.raw(b"BREW /coffee HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    live.engine.fail_after = 2
    live.chat(max_tokens=5)
    after = series(live)
    model = '{model_name="tiny"}'

    def grew(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grew(f"octavo:generation_tokens_total{model}") == 17
    assert grew('octavo:request_success_total{finished_reason="length",model_name="tiny"}') == 3
    assert grew('octavo:request_success_total{finished_reason="error",model_name="tiny"}') == 1
    assert grew(f"octavo:time_to_first_token_seconds_count{model}") == 4
    assert grew(f"octavo:inter_token_latency_seconds_count{model}") == 13
    assert grew(f"octavo:e2e_request_latency_seconds_count{model}") == 3
    assert grew('octavo:http_requests_total{method="GET",model_name="tiny",route="other",status="4xx"}') == 1
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert f"octavo:{name}{model}" in after
    for name in ("prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total"):
        assert f"octavo:{name}{model}" in after
    text = live.get("/metrics").body.decode()
    assert "coffee" not in text
    assert "BREW" not in text
    assert "no/such" not in text


def test_every_end_is_counted_once(live: Live) -> None:
    before = series(live)
    live.chat(max_tokens=200, stop=["a", "e", "i"])
    live.chat(max_tokens=3, n=3)
    live.complete(["a", "b"], max_tokens=2)
    after = series(live)
    ends = [name for name in after if name.startswith("octavo:request_success_total")]
    assert sum(after[name] - before[name] for name in ends) == 6


def test_page_is_self_contained(live: Live) -> None:
    answer = live.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    text = answer.body.decode()
    assert answer.body == web.page()
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", text)
    assert "https://" not in text
    assert len(answer.body) < 64_000
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == text.count("<script>") + text.count("<style>") > 2
    markup = re.sub(r"(?s)<(script|style)>.*?</\1>", "", text)
    assert not re.search(r"<[^>]*\s(on\w+|style)=", markup)


def test_the_page_can_be_turned_off() -> None:
    with Live(config(no_ui=True), backend()) as live:
        assert live.get("/").status == 404
        assert live.get("/health").status == 200


def test_plan_says_what_was_fitted(live: Live) -> None:
    plan = live.get("/plan").json
    assert plan["models"] == ["tiny", "alias/of-it"]
    assert (plan["max_model_len"], plan["kv_tokens"]) == (2048, 1024 * 16)
    assert plan["startup_seconds"]["total"] >= 0
    assert "nowhere" not in live.get("/plan").body.decode()


def test_openai_client_chat(live: Live) -> None:
    whole = client(live).chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=12, logprobs=True, top_logprobs=2
    )
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.content or []) == 12
    stream = client(live).chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_openai_client_completions_and_models(live: Live) -> None:
    assert [model.id for model in client(live).models.list()] == ["tiny", "alias/of-it"]
    whole = client(live).completions.create(model="tiny", prompt=["a", "b"], max_tokens=4, logprobs=1)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].logprobs is not None
    parts = list(client(live).completions.create(model="tiny", prompt="a", max_tokens=4, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text


def test_openai_client_errors(live: Live) -> None:
    with pytest.raises(openai.NotFoundError):
        client(live).chat.completions.create(model="nope", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(openai.BadRequestError) as caught:
        client(live).chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}], temperature=3)
    assert caught.value.param == "temperature"
    live.engine.full = True
    with pytest.raises(openai.RateLimitError):
        client(live).completions.create(model="tiny", prompt="a")
    live.engine.full = False
    live.engine.fail_after = 3
    with pytest.raises(openai.APIError):
        list(client(live).completions.create(model="tiny", prompt="a", stream=True))


async def test_many_streams_at_once(live: Live) -> None:
    live.engine.delay_s = 0.002
    many = openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)

    async def one(index: int) -> str:
        stream = await many.completions.create(model="tiny", prompt=f"story {index % 4}", max_tokens=20, stream=True)
        return "".join([part.choices[0].text async for part in stream])

    texts = await asyncio.gather(*(one(index) for index in range(32)))
    await many.close()
    for index, text in enumerate(texts):
        assert text == texts[index % 4]
    assert len(set(texts)) == 4


def test_loading_server_refuses_politely() -> None:
    with Live(config(), None) as live:
        assert live.get("/health").status == 200
        assert live.get("/ready").status == 503
        answer = live.chat()
        assert answer.status == 503
        assert answer.error["code"] == "unavailable"
        assert "retry-after" in answer.headers
        assert live.get("/metrics").status == 200
        live.service.attach(backend())
        assert live.get("/ready").status == 200
        assert live.chat(max_tokens=1).status == 200


def test_answers_are_plain_json(live: Live) -> None:
    answer = live.chat(max_tokens=2)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert msgspec.json.decode(answer.body)["object"] == "chat.completion"
