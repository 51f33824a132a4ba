"""The Responses API: events in order, conversations that go on, a store that survives, work in the background."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from api_live import Answer, Live, backend, config
from kept import keeping

from octavo.serve.responses import create

TOOL = {"type": "function", "name": "f"}


def allowed(*tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": "auto", "tools": list(tools)}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with keeping(tmp_path_factory.mktemp("kept")) as live:
        yield live


@pytest.fixture(autouse=True)
def fresh(kept: Live) -> Iterator[None]:
    kept.reset()
    yield
    kept.engine.delay_s = 0.0
    assert kept.quiet()


def named(answer: Answer) -> list[tuple[str, dict[str, Any]]]:
    assert answer.status == 200, answer.body
    found = []
    for block in answer.body.decode().strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((lines["event"], json.loads(lines["data"])))
    return found


def respond(live: Live, text: Any = "hello", **fields: Any) -> Answer:
    return live.post("/v1/responses", {"input": text, "max_output_tokens": 6, **fields})


def ended(live: Live, id: str) -> Any:
    for _ in range(300):
        body = live.get(f"/v1/responses/{id}").json
        if body["status"] not in ("queued", "in_progress"):
            return body
        time.sleep(0.01)
    raise AssertionError("still running")


def test_a_stream_builds_the_whole(kept: Live) -> None:
    events = named(respond(kept, stream=True))
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    assert all(name == event["type"] for name, event in events)
    kinds = [name for name, _ in events if name != "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event["delta"] for name, event in events if name == "response.output_text.delta")
    last = events[-1][1]["response"]
    assert last["output"][0]["content"][0]["text"] == text
    assert last["incomplete_details"] == {"reason": "max_output_tokens"}
    whole = respond(kept).json
    assert whole["output"][0]["content"][0]["text"] == text
    assert whole["usage"] == last["usage"]
    assert set(whole) == set(last)


def test_a_conversation_goes_on(kept: Live) -> None:
    first = respond(kept, "hello", instructions="be brief").json
    second = respond(kept, [{"role": "user", "content": "more"}], previous_response_id=first["id"]).json
    prompt = kept.tokenizer.decode(kept.engine.requests[-1].tokens, skip_special=False)
    said = first["output"][0]["content"][0]["text"]
    assert "be brief" not in prompt  # instructions are of one response
    assert prompt.count("<|im_start|>") == 4
    assert "hello<|im_end|>\n<|im_start|>assistant\n" in prompt
    assert said[:2].encode() in prompt.encode()
    assert second["previous_response_id"] == first["id"]
    third = respond(kept, "and more", previous_response_id=second["id"])
    assert third.status == 200
    assert respond(kept, previous_response_id="resp_nothing").status == 404
    listed = kept.get(f"/v1/responses/{second['id']}/input_items").json
    assert [item["content"][0]["text"] for item in listed["data"]] == ["more"]


def test_the_store_survives_a_restart(tmp_path: Path) -> None:
    with keeping(tmp_path) as live:
        id = respond(live, metadata={"a": "b"}).json["id"]
        running = live
        running.engine.delay_s = 0.05
        lost = respond(live, background=True, max_output_tokens=400).json["id"]
    with keeping(tmp_path) as live:
        assert live.get(f"/v1/responses/{id}").json["metadata"] == {"a": "b"}
        assert respond(live, previous_response_id=id).status == 200
        assert live.get(f"/v1/responses/{lost}").json["status"] == "failed"
        assert live.call("DELETE", f"/v1/responses/{id}").json == {"id": id, "object": "response", "deleted": True}
        assert live.get(f"/v1/responses/{id}").status == 404
        assert live.call("DELETE", f"/v1/responses/{id}").status == 404


def test_a_long_conversation_holds_nobody_up(kept: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    id = kept.post("/v1/responses", {"input": "hello " * 800, "max_output_tokens": 2}).json["id"]
    where: list[str] = []

    def encode(*given: Any) -> bytes:
        where.append(threading.current_thread().name)
        return encoded(*given)

    encoded = create._encode
    monkeypatch.setattr(create, "_encode", encode)
    assert respond(kept).status == respond(kept, previous_response_id=id, truncation="auto").status == 200
    assert [name.startswith("octavo-text") for name in where] == [False, True], "the second reads what was said before"


def test_what_is_not_stored_is_not_there(kept: Live) -> None:
    answer = respond(kept, store=False).json
    assert answer["store"] is False
    assert kept.get(f"/v1/responses/{answer['id']}").status == 404
    with Live(config(), backend()) as live:  # a server without a store
        answer = respond(live).json
        assert answer["store"] is False
        assert live.get(f"/v1/responses/{answer['id']}").status == 404
        assert respond(live, background=True).error["param"] == "background"


def test_keys_do_not_see_each_other(tmp_path: Path) -> None:
    with keeping(tmp_path, api_key=["one", "two"]) as live:
        one, two = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
        id = live.call("POST", "/v1/responses", {"input": "a", "max_output_tokens": 2}, one).json["id"]
        assert live.call("GET", f"/v1/responses/{id}", None, one).status == 200
        assert live.call("GET", f"/v1/responses/{id}", None, two).status == 404
        assert live.call("DELETE", f"/v1/responses/{id}", None, two).status == 404
        body = {"input": "a", "previous_response_id": id}
        assert live.call("POST", "/v1/responses", body, two).status == 404


def test_background(kept: Live) -> None:
    kept.engine.delay_s = 0.02
    begun = respond(kept, background=True).json
    assert begun["status"] in ("queued", "in_progress")
    body = ended(kept, begun["id"])
    assert body["status"] == "incomplete"
    assert body["usage"]["output_tokens"] == 6
    assert kept.get(f"/v1/responses/{begun['id']}?stream=true").error["param"] == "stream"


def test_background_faults_are_plain_errors(kept: Live) -> None:
    for stream in (False, True):
        answer = respond(kept, background=True, stream=stream, temperature=3)
        assert (answer.status, answer.error["param"]) == (400, "temperature")


def test_a_bug_is_a_response_that_failed(kept: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.serve.openai.chat._Chat.steps", lambda *_: 1 / 0)
    begun = respond(kept, background=True).json
    body = ended(kept, begun["id"])
    assert (body["status"], body["error"]["code"]) == ("failed", "server_error")
    assert "ZeroDivision" not in str(body)
    assert respond(kept).status == 500


def test_a_background_stream_can_be_taken_up_again(kept: Live) -> None:
    kept.engine.delay_s = 0.02
    whole = respond(kept, background=True, stream=True)
    events = named(whole)
    id = events[0][1]["response"]["id"]
    again = kept.get(f"/v1/responses/{id}?stream=true&starting_after=3")
    assert named(again) == events[4:]
    assert named(kept.get(f"/v1/responses/{id}?stream=true")) == events
    assert kept.get(f"/v1/responses/{id}?starting_after=3").error["param"] == "starting_after"
    assert kept.get(f"/v1/responses/{id}?stream=true&starting_after=-1").error["param"] == "starting_after"


def test_cancel(kept: Live) -> None:
    kept.engine.delay_s = 0.02
    id = respond(kept, background=True, max_output_tokens=500).json["id"]
    assert kept.post(f"/v1/responses/{id}/cancel", {}).json["status"] == "cancelled"
    assert kept.get(f"/v1/responses/{id}").json["status"] == "cancelled"
    assert kept.post(f"/v1/responses/{id}/cancel", {}).json["status"] == "cancelled"
    assert kept.quiet()
    id = respond(kept, background=True, max_output_tokens=500).json["id"]
    assert kept.call("DELETE", f"/v1/responses/{id}").status == 200
    assert kept.quiet()
    plain = respond(kept).json["id"]
    assert kept.post(f"/v1/responses/{plain}/cancel", {}).status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"conversation": "c"}, "conversation"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"reasoning": {"effort": "most"}}, "reasoning.effort"),
        ({"metadata": {"k" * 65: "a"}}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL], "tool_choice": allowed()}, "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": allowed({"name": ["f"]})}, "tool_choice.tools[0].name"),
        ({"tools": [TOOL], "tool_choice": allowed({"name": "f"}, {"name": "g"})}, "tool_choice.tools[1].name"),
        ({"tools": [TOOL], "tool_choice": allowed({"name": "f"}, 1)}, "tool_choice.tools[1].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "strng"}}]}, "tools[0].parameters"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "strng"}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": 5}}}, "text.format.schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"include": ["everything"]}, "include[0]"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"n": 2}, "n"),
        ({"top_k": -5}, "top_k"),
        ({"best_of": 2}, "best_of"),
    ],
)
def test_bad_requests(kept: Live, fields: dict[str, Any], param: str) -> None:
    answer = kept.post("/v1/responses", {"input": "hello", **fields})
    assert answer.status == 400, answer.body
    assert answer.error["param"].startswith(param)
    assert not kept.engine.requests


def test_a_response_that_is_not_there_is_named_by_the_field(kept: Live) -> None:
    answer = kept.post("/v1/responses", {"input": "a", "previous_response_id": "resp_gone"})
    assert (answer.status, answer.error["param"]) == (404, "previous_response_id")
    answer = kept.post("/v1/batches", {"input_file_id": "file-gone", "endpoint": "/v1/completions"})
    assert (answer.status, answer.error["param"]) == (404, "input_file_id")


def test_fields_of_chat_pass_through(kept: Live) -> None:
    answer = respond(kept, seed=7, top_k=3, nonsense=True, stop=["zz"])
    assert answer.headers["x-octavo-ignored"] == "nonsense"
    sampling = kept.engine.requests[-1].sampling
    assert (sampling.seed, sampling.top_k) == (7, 3)


def test_logprobs(kept: Live) -> None:
    body = respond(kept, include=["message.output_text.logprobs"], top_logprobs=2).json
    entries = body["output"][0]["content"][0]["logprobs"]
    assert len(entries) == 6
    assert len(entries[0]["top_logprobs"]) == 2


def test_a_failure_in_the_middle(kept: Live) -> None:
    kept.engine.fail_after = 3
    events = named(respond(kept, stream=True))
    assert events[-1][0] == "response.failed"
    assert events[-1][1]["response"]["error"]["code"] == "server_error"
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    assert respond(kept).status == 500
    kept.engine.fail_after, kept.engine.full = None, True
    assert respond(kept, stream=True).status == 429


def test_the_openai_client(kept: Live) -> None:
    client = openai.OpenAI(base_url=f"{kept.url}/v1", api_key="none", max_retries=0)
    whole = client.responses.create(model="tiny", input="hello", max_output_tokens=6)
    assert whole.output_text
    with client.responses.stream(model="tiny", input="hello", max_output_tokens=6) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == whole.output_text
    assert client.responses.retrieve(whole.id).output_text == text
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)
    kept.engine.delay_s = 0.02
    begun = client.responses.create(model="tiny", input="hello", background=True, max_output_tokens=200)
    assert client.responses.cancel(begun.id).status == "cancelled"


def test_a_conversation_that_is_too_long_loses_its_oldest_turns(kept: Live) -> None:
    long = "word " * 300
    turns = [{"role": "system", "content": "Be brief."}]
    for number in range(12):
        turns += [{"role": "user", "content": f"turn {number} {long}"}, {"role": "assistant", "content": "yes"}]
    turns.append({"role": "user", "content": "the last"})
    assert respond(kept, turns).error["code"] == "context_length_exceeded"
    kept.engine.requests.clear()
    answer = respond(kept, turns, truncation="auto")
    assert answer.status == 200, answer.body
    assert answer.json["truncation"] == "auto"
    prompt = kept.tokenizer.decode(kept.engine.requests[-1].tokens)
    assert "Be brief." in prompt
    assert "the last" in prompt
    assert "turn 0 " not in prompt
    assert 0.5 * 2048 < len(kept.engine.requests[-1].tokens) <= 2048 - 6, "no more is left out than has to be"
    hopeless = respond(kept, "word " * 5000, truncation="auto")
    assert hopeless.error["code"] == "context_length_exceeded"
