import msgspec
import pytest

from octavo.base.errors import UserError
from octavo.serve.openai.fields import REFUSED, ignored_header, sort_unknown
from octavo.text.tools import check_tools


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_field_that_would_change_the_answer_is_refused(name: str) -> None:
    with pytest.raises(UserError) as caught:
        sort_unknown({name: raw({"type": "object", "x": 1})})
    assert caught.value.param == name
    assert sort_unknown({name: raw(None)}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("best_of", 1), ("modalities", ["text"]), ("suffix", ""), ("use_beam_search", False), ("n_x", None)],
)
def test_values_that_ask_for_nothing_pass(name: str, value: object) -> None:
    assert sort_unknown({name: raw(value)}) == []


@pytest.mark.parametrize(("name", "value"), [("best_of", 2), ("best_of", True), ("modalities", ["audio"])])
def test_values_that_ask_for_something_do_not(name: str, value: object) -> None:
    with pytest.raises(UserError):
        sort_unknown({name: raw(value)})


def test_unknown_fields_are_named_and_safe_in_a_header() -> None:
    names = sort_unknown({"foo": raw(1), "bar\r\nX: y": raw([]), "ü" * 100: raw("x")})
    header = ignored_header(names)
    assert header.startswith("foo, bar??X??y, ")
    assert header.isascii()
    assert "\n" not in header
    assert len(ignored_header([f"field{index}" for index in range(500)])) < 400


def tool(name: object = "get", **function: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **function}}


def test_good_tools() -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": ["string", "null"], "pattern": r"^\p{L}+(?<year>\d{4})?$"}, "n": True},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"x": {"anyOf": [{"type": "integer"}, {"enum": [1, "a"]}]}},
    }
    check_tools([tool(parameters=parameters, description="d"), tool("other")])


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        ({"type": "retrieval"}, "tools[1].type"),
        ({"type": "function"}, "tools[1].function"),
        ({"function": []}, "tools[1].function"),
        (tool(""), "tools[1].function.name"),
        (tool("with space"), "tools[1].function.name"),
        (tool("x" * 65), "tools[1].function.name"),
        (tool("first"), "tools[1].function.name"),
        (tool(3), "tools[1].function.name"),
        (tool(description=3), "tools[1].function.description"),
        (tool(parameters=[]), "tools[1].function.parameters"),
        (tool(parameters={"type": '"something'}), "tools[1].function.parameters.type"),
        (tool(parameters={"type": {"a": 1}}), "tools[1].function.parameters.type"),
        (tool(parameters={"properties": []}), "tools[1].function.parameters.properties"),
        (tool(parameters={"properties": {"a": 5}}), "tools[1].function.parameters.properties.a"),
        (tool(parameters={"properties": {"a": {"pattern": "("}}}), "tools[1].function.parameters.properties.a.pattern"),
        (tool(parameters={"pattern": "a{1,1000000}"}), "tools[1].function.parameters.pattern"),
        (tool(parameters={"pattern": "(" * 2000}), "tools[1].function.parameters.pattern"),
        (tool(parameters={"patternProperties": {"[": {}}}), "tools[1].function.parameters.pattern"),
        (tool(parameters={"required": "a"}), "tools[1].function.parameters.required"),
        (tool(parameters={"anyOf": {}}), "tools[1].function.parameters.anyOf"),
        (tool(parameters={"x": "y" * 70_000}), "tools[1].function.parameters"),
    ],
)
def test_bad_tools_are_named(bad: dict[str, object], param: str) -> None:
    with pytest.raises(UserError) as caught:
        check_tools([tool("first"), bad])
    assert caught.value.param == param


def test_deep_schema() -> None:
    with pytest.raises(UserError, match="deeper"):
        check_tools([tool(parameters=nested(40))])
