"""The time that a request gives itself: as a field, as a header, in every dialect."""

import time

import anthropic
import openai
import pytest
from api_live import Live

PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 900},
    "/v1/completions": {"prompt": "hello", "max_tokens": 900},
    "/v1/responses": {"input": "hello", "max_output_tokens": 900, "store": False},
    "/v1/messages": {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 900},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("way", ["field", "header"])
def test_before_the_end_of_a_whole_answer(live: Live, path: str, way: str) -> None:
    live.engine.delay_s = 0.02
    begin = time.monotonic()
    if way == "field":
        answer = live.post(path, {**PATHS[path], "timeout": 0.3})
    else:
        answer = live.post(path, PATHS[path], X_Request_Timeout="0.3")
    assert answer.status == 504
    assert answer.error["type"] == "timeout_error"
    assert "0.3 s" in answer.error["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert time.monotonic() - begin < 3
    assert live.quiet(2)
    assert live.engine.aborted == [request.id for request in live.engine.requests]


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_has_begun_ends_with_an_error_event(live: Live, path: str) -> None:
    live.engine.delay_s = 0.02
    answer = live.post(path, {**PATHS[path], "timeout": 0.4, "stream": True})
    assert answer.status == 200
    assert b"[DONE]" not in answer.body
    last = answer.body.decode().strip().split("\n\n")[-1]
    assert "longer than 0.4 s" in last
    assert len(answer.events) > 3
    assert live.quiet(2)


def test_a_stream_that_has_not_begun_is_a_504(live: Live) -> None:
    live.engine.delay_s = 3.0
    answer = live.chat(stream=True, timeout=0.2)
    assert (answer.status, answer.error["code"]) == (504, "request_timeout")
    live.engine.delay_s = 0.0


def test_the_shortest_time_holds_and_the_servers_own_is_the_most(live: Live) -> None:
    live.engine.delay_s = 0.02
    answer = live.post("/v1/completions", {"prompt": "a", "max_tokens": 900, "timeout": 30}, X_Request_Timeout="0.2")
    assert "0.2 s" in answer.error["message"]
    assert live.complete("a", max_tokens=2, timeout=1e9).status == 200


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1e5", "nan", "inf", "1" * 20, ""])
def test_headers_that_are_no_time(live: Live, value: str) -> None:
    answer = live.post("/v1/completions", {"prompt": "a"}, X_Request_Timeout=value)
    assert (answer.status, answer.error["param"]) == (400, "X-Request-Timeout")


@pytest.mark.parametrize("value", [0, -1, "soon", True, []])
def test_fields_that_are_no_time(live: Live, value: object) -> None:
    answer = live.complete("a", timeout=value)
    assert (answer.status, answer.error["param"]) == (400, "timeout")


def test_what_a_client_says_of_its_own_patience_is_not_obeyed(live: Live) -> None:
    live.engine.delay_s = 0.05
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=1.0)
    stream = list(client.completions.create(model="tiny", prompt="a", max_tokens=40, stream=True))  # two seconds
    assert stream[-1].choices[0].finish_reason == "length"


def test_clients_see_the_end_of_time_as_their_own_error(live: Live) -> None:
    live.engine.delay_s = 0.02
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none")
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model="tiny", prompt="a", max_tokens=900, extra_body={"timeout": 0.3})
    assert caught.value.status_code == 504
    assert len(live.engine.requests) == 1, "it was not sent again"
    other = anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0)
    with pytest.raises(anthropic.APIStatusError) as refused:
        other.messages.create(
            model="tiny",
            max_tokens=900,
            messages=[{"role": "user", "content": "a"}],
            extra_headers={"X-Request-Timeout": "0.3"},
        )
    assert refused.value.status_code == 504
