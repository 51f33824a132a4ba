"""Bad requests by the kind: each is a 400 that names the field, and the engine never hears of it."""

from typing import Any

import pytest
from api_live import Live

HUGE = 10**30
SAMPLING_FAULTS: list[tuple[str, Any]] = [
    ("temperature", -1),
    ("temperature", 2.0001),
    ("temperature", 1e308),
    ("temperature", True),
    ("temperature", "0.5"),
    ("temperature", [1]),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("typical_p", 0),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("repetition_penalty", 5e-324),
    ("repetition_penalty", 1e-40),
    ("n", 0),
    ("n", -1),
    ("n", 5),
    ("n", 16385),
    ("n", 10**9),
    ("n", 1.5),
    ("n", "2"),
    ("n", HUGE),
    ("seed", 1 << 70),
    ("seed", "x"),
    ("min_tokens", -1),
    ("max_tokens", -1),
    ("max_tokens", HUGE),
    ("stop", {}),
    ("stop", [""]),
    ("stop", ["x"] * 17),
    ("stop", "x" * 2000),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [1] * 300),
    ("stop_token_ids", [10**6]),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"1": 1, "01": 2}),
    ("logit_bias", {"\u0661": 1}),
    ("logit_bias", {"99999999": 1}),
    ("logit_bias", {str(i): 1 for i in range(1025)}),
    ("logit_bias", []),
    ("bad_words", [""]),
    ("bad_words", ["x"] * 300),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [-1]),
    ("allowed_token_ids", [10**6]),
    ("truncate_prompt_tokens", -2),
    ("stream", "yes"),
    ("stream", 1),
    ("stream_options", {"include_usage": True}),
    ("ignore_eos", "no"),
    ("cache_salt", ""),
    ("cache_salt", "x" * 200),
    ("priority", 1),
    ("priority", "high"),
    ("prompt_logprobs", 21),
    ("prompt_logprobs", -2),
]
CHAT_FAULTS: list[tuple[str, Any]] = [
    ("logprobs", 3),
    ("top_logprobs", 21),
    ("top_logprobs", 2),
    ("max_completion_tokens", 0),
    ("max_tokens", 0),
    ("max_completion_tokens", 5000),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}),
    ("chat_template_kwargs", {"messages": []}),
    ("chat_template_kwargs", []),
    ("reasoning_effort", "hihg"),
    ("reasoning_effort", ""),
    ("reasoning_effort", 3),
    ("echo", True),
    ("functions", [{"name": "f"}]),
    ("chat_template", "{{ 1 }}"),
]
COMPLETION_FAULTS: list[tuple[str, Any]] = [
    ("logprobs", 21),
    ("logprobs", -1),
    ("logprobs", True),
    ("max_tokens", 0),
    ("suffix", "tail"),
    ("best_of", 3),
]
BOTH_REFUSED: list[tuple[str, Any]] = [
    ("response_format", {"type": "json_objects"}),
    ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "json_object", "schema": {"type": "object"}}),
    ("response_format", {"type": "text", "json_schema": {"schema": {"type": "object"}}}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {"properties": []}}}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": "stsring"}}}),
    ("guided_json", {"type": "object", "properties": {"a": {"type": 1}}}),
    ("guided_regex", "("),
    ("guided_regex", "a{1,1000000}"),
    ("guided_choice", []),
    ("structured_outputs", {"json": {}, "regex": "a"}),
    ("structured_outputs", {"unheard_of": 1}),
    ("use_beam_search", True),
    ("kv_transfer_params", {"do_remote_decode": True}),
]


def refused(live: Live, answer: Any, field: str) -> None:
    assert answer.status == 400, answer.body
    assert answer.error["param"].split("[")[0].split(".")[0] == field, answer.error
    assert answer.error["type"] == "invalid_request_error"
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert len(answer.error["message"].encode()) <= 600
    assert answer.headers["content-type"] == "application/json"
    assert not live.engine.requests


@pytest.mark.parametrize(("field", "value"), SAMPLING_FAULTS + BOTH_REFUSED)
def test_fields_of_both_endpoints(live: Live, field: str, value: Any) -> None:
    refused(live, live.chat(**{field: value}), field)
    refused(live, live.complete(**{field: value}), field)


@pytest.mark.parametrize(("field", "value"), CHAT_FAULTS)
def test_chat_fields(live: Live, field: str, value: Any) -> None:
    refused(live, live.chat(**{field: value}), field)


@pytest.mark.parametrize("word", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_the_words_for_effort(live: Live, word: str) -> None:
    assert live.chat(reasoning_effort=word).status == 200
    message = live.chat(reasoning_effort=word + "er").error["message"]
    assert "one of high, low, max, medium, minimal, none, xhigh" in message


@pytest.mark.parametrize(("field", "value"), COMPLETION_FAULTS)
def test_completion_fields(live: Live, field: str, value: Any) -> None:
    refused(live, live.complete(**{field: value}), field)


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        {},
        "",
        [],
        [""],
        [[]],
        ["a", 1],
        ["a", [1]],
        [1, "a"],
        [1.5],
        [True],
        [[1, "a"]],
        [[[1]]],
        [-1],
        [2**40],
        [10**6],
        [[1], [-1]],
        ["x"] * 257,
        [None],
    ],
)
def test_prompts(live: Live, prompt: Any) -> None:
    refused(live, live.complete(prompt), "prompt")


def test_prompt_token_bounds(live: Live) -> None:
    last = live.tokenizer.vocab_size - 1
    assert live.complete([last], max_tokens=1).status == 200
    live.engine.requests.clear()
    refused(live, live.complete([last + 1], max_tokens=1, repetition_penalty=1.1), "prompt")


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 20}, {"logprobs": 20, "echo": True}])
def test_log_probabilities_of_prompts_are_bounded_together(live: Live, fields: dict[str, Any]) -> None:
    many = [[5] * 1000] * 64
    refused(live, live.complete(many, n=4, max_tokens=1, **fields), next(iter(fields)))
    assert live.complete(many, max_tokens=1, **{**fields, next(iter(fields)): 1}).status == 200


def test_too_many_choices_before_any_work(live: Live) -> None:
    refused(live, live.complete(["x"] * 200, n=100), "n")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ({}, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ([{}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": 1, "content": "a"}], "messages[0].role"),
        ([{"role": "", "content": "a"}], "messages[0].role"),
        ([{"role": "x" * 65, "content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": [{"text": "a"}]}], "messages[0].content[0].type"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
            "messages",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages"),
        ([{"role": "user", "content": "a"}] * 2049, "messages"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "messages"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}], "messages[0].function_call"),
        ([{"role": "assistant", "audio": {"id": "a"}}], "messages[0].audio"),
    ],
)
def test_messages(live: Live, messages: Any, param: str) -> None:
    answer = live.post("/v1/chat/completions", {"messages": messages})
    refused(live, answer, "messages")
    assert answer.error["param"].startswith(param)


def test_two_ways_to_end_a_prompt_exclude_each_other(live: Live) -> None:
    answer = live.chat(continue_final_message=True, add_generation_prompt=True)
    refused(live, answer, "continue_final_message")


def test_tools_are_checked_by_name(live: Live) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": '"something'}}}
    answer = live.chat(tools=[tool])
    refused(live, answer, "tools")
    assert answer.error["param"] == "tools[0].function.parameters.type"
    refused(live, live.chat(tools=[tool] * 129), "tools")
    for ref in ("#/$defs/gone", "http://127.0.0.1:1/x", "file:///etc/passwd"):
        tool["function"]["parameters"] = {"type": "object", "properties": {"a": {"$ref": ref}}}  # type: ignore[index]
        answer = live.chat(tools=[tool], tool_choice="required")
        assert answer.error["param"] == "tools[0].function.parameters.properties.a.$ref"
    assert live.chat(chat_template_kwargs={"messages": []}).error["message"].startswith("chat_template_kwargs.messages")


def test_unknown_model(live: Live) -> None:
    for answer in (live.chat(model="gpt-9"), live.complete(model="../../etc/passwd"), live.get("/v1/models/nope")):
        assert answer.status == 404
        assert answer.error["code"] == "model_not_found"
        assert answer.error["param"] == "model"


def test_context_overflow(live: Live) -> None:
    answer = live.complete([5] * 3000)
    refused(live, answer, "prompt")
    assert live.complete("hello", max_tokens=100_000).status in (200, 400)


def test_long_text_is_refused_without_tokenizing_it_all(live: Live) -> None:
    refused(live, live.complete("a" * 4_000_000), "prompt")
    assert live.chat("\N{GRINNING FACE}" * 500_000).status == 400


def test_unknown_fields_are_named(live: Live) -> None:
    answer = live.chat(max_tokens=1, frobnicate=3, user="me", **{"weird name\r\n": [1]})
    assert answer.status == 200
    assert answer.headers["x-octavo-ignored"] == "frobnicate, weird?name??"
    assert "x-octavo-ignored" not in live.chat(max_tokens=1, store=True).headers


@pytest.mark.parametrize("text", [r"\ud800", r"a\ude00 b", r"\ud83d\ud83d", r"\uD83Dabcdefgh"])
def test_half_of_a_pair_is_called_that(live: Live, text: str) -> None:
    for path, field in (("/v1/completions", "prompt"), ("/tokenize", "model"), ("/v1/responses", "user")):
        answer = live.call("POST", path, b'{"%b":"%b"}' % (field.encode(), text.encode()))
        assert answer.status == 400
        assert "stands without its other half" in answer.error["message"]
    whole = live.call("POST", "/tokenize", rb'{"prompt":"\ud83d\ude00 \\ud800"}')
    assert whole.status == 200


@pytest.mark.parametrize("number", ["1e400", "-1e999999999", "1" + "0" * 400])
@pytest.mark.parametrize("field", ["best_of", "verbosity", "watermarking"])
def test_a_number_that_there_cannot_be_is_named(live: Live, field: str, number: str) -> None:
    answer = live.call("POST", "/v1/completions", b'{"prompt":"x","%b":%b}' % (field.encode(), number.encode()))
    refused(live, answer, field)


def test_null_means_default(live: Live) -> None:
    fields = dict.fromkeys(
        ["temperature", "top_p", "n", "stop", "stream", "seed", "max_tokens", "logprobs", "tools", "stream_options"]
    )
    assert live.chat(**fields, max_completion_tokens=3).status == 200


@pytest.mark.parametrize("code", [400, 404, 408, 413, 429, 500, 503])
def test_engine_errors_keep_their_status(live: Live, code: int) -> None:
    live.engine.fail_code = code
    message = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    for fail_after, path, body in (
        (0, "/v1/chat/completions", message),
        (0, "/v1/chat/completions", {**message, "stream": True}),
        (2, "/v1/chat/completions", message),
        (2, "/v1/messages", message),
        (2, "/v1/responses", {"input": "hi"}),
    ):
        live.engine.fail_after = fail_after
        answer = live.post(path, body)
        assert answer.status == code, path
        assert ("retry-after" in answer.headers) == (code in (429, 503))
        assert "Traceback" not in answer.body.decode()


def test_error_inside_a_stream_is_one_event_and_no_done(live: Live) -> None:
    live.engine.fail_after = 3
    answer = live.chat(stream=True, max_tokens=10)
    assert answer.status == 200
    events = answer.events
    assert "error" in events[-1]
    assert sum("error" in event for event in events if event != "[DONE]") == 1
    assert "[DONE]" not in events


def test_full_queue_and_dead_engine(live: Live) -> None:
    live.engine.full = True
    answer = live.chat()
    assert answer.status == 429
    assert answer.headers["retry-after"] == "2"
    live.engine.full = False
    live.engine.dead = True
    answer = live.chat()
    assert answer.status == 503
    assert live.get("/health").status == 503
    assert live.get("/ready").status == 503
    live.engine.dead = False
    assert live.get("/ready").status == 200


def test_bug_in_a_handler_is_a_fixed_text(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("secret /root/path")

    monkeypatch.setattr(live.engine, "submit", explode)
    answer = live.chat()
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert answer.error["code"] == "internal_error"


def test_neighbours_of_bad_requests_are_untouched(live: Live) -> None:
    before = live.complete("the canary", max_tokens=20, seed=1).json["choices"][0]["text"]
    for field, value in SAMPLING_FAULTS[:20]:
        live.complete(**{field: value})
    assert live.complete("the canary", max_tokens=20, seed=1).json["choices"][0]["text"] == before
