"""Structured output as clients ask for it: every spelling becomes one constraint that rides with the request."""

import time
from typing import Any

import pytest
from api_live import Live

from octavo.grammar.spec import RIDER, GrammarSpec, decode_spec

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}
FORMATS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_object"}}, "json_object", "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        "json_schema",
        "response_format.json_schema.schema",
    ),
    ({"response_format": {"type": "structural_tag", **TAG}}, "structural_tag", "response_format"),
    ({"structured_outputs": {"json": SCHEMA}}, "json_schema", "structured_outputs.json"),
    ({"structured_outputs": {"json": '{"type":"null"}'}}, "json_schema", "structured_outputs.json"),
    ({"structured_outputs": {"json_object": True}}, "json_object", "structured_outputs.json_object"),
    ({"structured_outputs": {"regex": "[a-z]+"}}, "regex", "structured_outputs.regex"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "choice", "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "grammar", "structured_outputs.grammar"),
    ({"structured_outputs": {"structural_tag": TAG}}, "structural_tag", "structured_outputs.structural_tag"),
    ({"guided_json": SCHEMA}, "json_schema", "guided_json"),
    ({"guided_regex": "a+"}, "regex", "guided_regex"),
    ({"guided_choice": ["a", "b"]}, "choice", "guided_choice"),
    ({"guided_grammar": 'start: "a"'}, "grammar", "guided_grammar"),
    ({"guided_json_object": True}, "json_object", "guided_json_object"),
]
NOTHING: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"response_format": None},
    {"structured_outputs": {}},
    {"structured_outputs": None},
    {"guided_json": None, "guided_json_object": False},
    {"guided_decoding_backend": "outlines"},
]


def rider(live: Live) -> GrammarSpec | None:
    request = live.engine.requests.pop()
    live.engine.requests.clear()
    return decode_spec(request.riders[RIDER]) if RIDER in request.riders else None


@pytest.mark.parametrize(("fields", "kind", "param"), FORMATS)
def test_every_spelling_becomes_a_constraint(live: Live, fields: dict[str, Any], kind: str, param: str) -> None:
    for send in (live.chat, live.complete):
        answer = send(max_tokens=4, **fields)
        assert answer.status == 200, answer.body
        assert "x-octavo-ignored" not in answer.headers
        spec = rider(live)
        assert spec is not None
        assert (spec.kind, spec.param) == (kind, param)
        assert spec.finish_within_budget == kind.startswith("json")


@pytest.mark.parametrize("fields", NOTHING)
def test_what_asks_for_nothing_constrains_nothing(live: Live, fields: dict[str, Any]) -> None:
    assert live.chat(max_tokens=4, **fields).status == 200
    assert rider(live) is None


def test_options_reach_the_constraint(live: Live) -> None:
    options = {"disable_any_whitespace": True, "disable_additional_properties": True, "finish_within_budget": False}
    given = {"json": SCHEMA, "backend": "xgrammar", **options}
    assert live.chat(max_tokens=4, min_tokens=2, n=2, ignore_eos=True, structured_outputs=given).status == 200
    first, second = live.engine.requests
    spec = decode_spec(first.riders[RIDER])
    assert first.riders == second.riders
    assert (spec.backend, spec.any_whitespace, spec.additional_properties) == ("xgrammar", False, False)
    assert (spec.finish_within_budget, spec.min_tokens) == (False, 2)
    # The constraint says when the output may end.
    assert first.sampling.min_tokens == 0
    assert first.sampling.eos_token_ids


def test_stop_tokens_of_the_callers_own_wait_for_min_tokens_under_a_constraint(live: Live) -> None:
    given = {"structured_outputs": {"json": SCHEMA}, "min_tokens": 2}
    assert live.chat(max_tokens=4, **given).status == 200
    (end, *_) = live.engine.requests[0].sampling.eos_token_ids
    assert live.chat(max_tokens=4, stop_token_ids=[end, 3], **given).status == 200
    sampling = live.engine.requests[1].sampling
    assert (sampling.min_tokens, sampling.stop_token_ids, sampling.eos_ruled) == (2, (3,), True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"json": False}}, "structured_outputs.json"),
        ({"guided_json": False}, "guided_json"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": False}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_schema_that_is_false_is_told_apart_from_none(live: Live, fields: dict[str, Any], param: str) -> None:
    answer = live.chat(max_tokens=4, **fields)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert "is false, which no value can satisfy" in answer.error["message"]


@pytest.mark.parametrize(
    "empty", [{"json": ""}, {"regex": ""}, {"choice": []}, {"grammar": ""}, {"structural_tag": ""}]
)
def test_what_is_empty_is_refused_and_not_passed_over(live: Live, empty: dict[str, Any]) -> None:
    (name,) = empty
    for fields, param in (({"structured_outputs": empty}, f"structured_outputs.{name}"),):
        answer = live.chat(max_tokens=4, **fields)
        if name == "grammar":  # read where it is compiled
            assert rider(live) is not None
        else:
            assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert live.chat(max_tokens=4, structured_outputs={"json": {}}).status == 200
    assert rider(live) is not None
    assert live.chat(max_tokens=4, structured_outputs={"json": True}).status == 200
    assert rider(live) is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "a", "backend": "nope"}}, "structured_outputs.backend"),
        ({"structured_outputs": {"regex": "a", "backend": "x" * 5_000_000}}, "structured_outputs.backend"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": "("}}, "structured_outputs.whitespace_pattern"),
        ({"guided_regex": "a", "guided_decoding_backend": "nope"}, "guided_decoding_backend"),
        ({"guided_json": {}, "guided_whitespace_pattern": "("}, "guided_whitespace_pattern"),
    ],
)
def test_what_stands_beside_a_constraint_has_its_own_name(live: Live, fields: dict[str, Any], param: str) -> None:
    begin = time.thread_time()
    answer = live.chat(max_tokens=4, **fields)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert param in answer.error["message"]
    assert time.thread_time() - begin < 0.5
    assert not live.engine.requests


def test_two_constraints_at_once_are_refused(live: Live) -> None:
    answer = live.chat(response_format={"type": "json_object"}, guided_regex="a")
    assert answer.status == 400
    assert answer.error["param"] == "guided_regex"
    assert not live.engine.requests
