"""Constraints that nothing finite fits are told from their text; one that fails on the way is its request's fault."""

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from grammar_kit import json_spec

from octavo.base.errors import UserError
from octavo.grammar import lark
from octavo.grammar.ending import check_grammar_ends, check_schema_ends
from octavo.grammar.forms import check_shape, check_spec
from octavo.grammar.rules import read_rules
from octavo.grammar.spec import GrammarSpec
from octavo.text.tools import check_tools

AGAIN = {"$ref": "#"}
ENDLESS: dict[str, Any] = {
    "a member": {"type": "object", "properties": {"a": AGAIN}, "required": ["a"]},
    "itself": AGAIN,
    "two": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "items": {"type": "array", "items": AGAIN, "minItems": 1},
    "a second item": {"type": "array", "prefixItems": [{}, AGAIN], "items": False, "minItems": 2},
    "contains": {"type": "array", "contains": AGAIN},
    "all of": {"allOf": [{"type": "object"}, AGAIN]},
    "each way": {"anyOf": [AGAIN, {"type": "array", "minItems": 3, "items": AGAIN}]},
    "any member": {"type": ["object", "array"], "additionalProperties": AGAIN, "required": ["z"], "minItems": 1}
    | {"items": AGAIN},
    "false": {"$ref": "#/$defs/no", "$defs": {"no": False}},
}
ENDING: dict[str, Any] = {
    "optional": {"type": "object", "properties": {"a": AGAIN}},
    "null": {"type": "object", "properties": {"a": {"anyOf": [AGAIN, {"type": "null"}]}}, "required": ["a"]},
    "none": {"type": "array", "items": AGAIN},
    "any type": {"properties": {"a": AGAIN}, "required": ["a"]},
    "a kind of its own": {"type": ["object", "null"], "properties": {"a": AGAIN}, "required": ["a"]},
    "a constant": {"const": 1, "anyOf": [AGAIN, True]},
    "a list of none": {"type": "array", "contains": AGAIN, "minContains": 0},
    "an anchor": {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "null"}}},
    "a name by pattern": {"type": "object", "patternProperties": {"^a": {}}, "required": ["a"]}
    | {"additionalProperties": AGAIN},
}


@pytest.mark.parametrize("name", ENDLESS)
def test_schemas_that_no_value_fits(name: str) -> None:
    with pytest.raises(UserError, match=r"\$ref") as caught:
        check_shape(json_spec(ENDLESS[name], param="response_format.json_schema.schema"))
    assert caught.value.param == "response_format.json_schema.schema"
    tool = {"type": "function", "function": {"name": "f", "parameters": ENDLESS[name]}}
    with pytest.raises(UserError) as caught:
        check_tools([tool])
    assert caught.value.param == "tools[0].function.parameters"
    tag = {"format": {"type": "json_schema", "json_schema": ENDLESS[name]}}
    with pytest.raises(UserError):
        check_spec(GrammarSpec("structural_tag", json.dumps(tag)))


@pytest.mark.parametrize("name", ENDING)
def test_schemas_that_some_value_fits(name: str) -> None:
    check_schema_ends(ENDING[name], "x")


def test_a_maze_of_references_is_looked_at_in_time() -> None:
    count = 3000
    order = [(7 * place) % count for place in range(count)]
    parts: dict[str, Any] = {f"p{a}": {"$ref": f"#/$defs/p{b}"} for a, b in pairwise(order)}
    parts[f"p{order[-1]}"] = {"type": "null"}
    begin = time.process_time()
    check_schema_ends({"$ref": f"#/$defs/p{order[0]}", "$defs": parts}, "x")
    assert time.process_time() - begin < 1


ENDLESS_GRAMMARS = {
    'root ::= "a" root': "start",
    'start: "a" start': "start",
    'start: a\na: "x" a | b\nb: "(" b ")"': "b",
    'start: "y" | a\na: ("x" | "z")+ a': "a",
    'start: a b\na: "x"\nb: "y" (c | d)\nc: b\nd: c{2}': "",
}
ENDING_GRAMMARS = [
    'start: "a" | "b" start',
    'start: [a] "x"\na: a "q"',  # nobody is forced to begin an `a`
    'start: a* "x" b{0,3} c?\na: "1"\nb: "2"\nc: "3"',
    'root ::= item+\nitem ::= [a-z]{2,3} ("," item)?',
    '%llguidance {}\nstart: tail\ntail: %json {"const": "}"} more\nmore[lazy]: /x\\/y/ <[12]> | <tool> "}"',
    'start: sum // a sum\nsum: NUMBER | sum "+" sum\nNUMBER: /[0-9]+/ & ~/0.*/\n%ignore / +/',
]


@pytest.mark.parametrize("source", ENDLESS_GRAMMARS)
def test_grammars_in_which_nothing_ends(source: str) -> None:
    with pytest.raises(UserError, match="never comes to an end") as caught:
        check_spec(GrammarSpec("grammar", source, param="guided_grammar"))
    assert caught.value.param == "guided_grammar"
    assert f"the rule {ENDLESS_GRAMMARS[source]}" in caught.value.message


@pytest.mark.parametrize("source", ENDING_GRAMMARS)
def test_grammars_that_end(source: str) -> None:
    assert read_rules(lark.from_any(source)) is not None
    if not source.startswith("start: [a]"):
        check_grammar_ends(lark.from_any(source))


def test_what_is_not_understood_is_left_to_the_engine() -> None:
    for source in ("start: %unknown", 'start: "a', "start: (", "start: a)", "start: " + "(" * 500, "x: *"):
        assert read_rules(source) is None
        check_grammar_ends(source)
    check_grammar_ends('other: "a" other')  # the engine says that there is no start
