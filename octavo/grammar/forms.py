"""From a GrammarSpec, as a request has it, to a Form, as a grammar engine takes it. All bounds are tested here."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from octavo.base.errors import UserError
from octavo.grammar import lark
from octavo.grammar.base import Form, Refused
from octavo.grammar.ending import check_grammar_ends, check_schema_ends
from octavo.grammar.schema import check_pattern, check_references, check_schema, normal
from octavo.grammar.shortest import Example, hints, longest, no_example
from octavo.grammar.spec import (
    MAX_CHOICES,
    MAX_GRAMMAR_BYTES,
    MAX_JSON_BYTES,
    MAX_JSON_DEPTH,
    MAX_MARKER_CHARS,
    MAX_MARKERS,
    MAX_REGEX_CHARS,
    UNSEEN,
    GrammarSpec,
)

KEPT = 256  # of the last constraints that were found in order, so as not to look again; large ones are not kept
BRIEF = 8192  # characters
_TAG_SCHEMAS = ("schema", "json_schema")
ANY_OBJECT = '{"type":"object"}'
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def check_shape(spec: GrammarSpec) -> None:
    """What is cheap to see: sizes, JSON, keywords. Raises UserError whose `param` is the place at fault."""
    check = _check_shape_once if len(spec.source) + len(spec.around) <= BRIEF else _check_shape
    check(spec)


def _check_shape(spec: GrammarSpec) -> None:
    if spec.kind in UNSEEN:
        _check_markers(spec, spec.param)
        _check_size(spec.source, spec.param)
        _check_size(spec.around, spec.param)
        if spec.kind == "structural_tag":
            _tag(spec.source, spec.param)
    else:
        check_spec(spec, search=False)


_check_shape_once = lru_cache(KEPT)(_check_shape)


def check_spec(spec: GrammarSpec, *, search: bool = True, example: Example = no_example) -> Form:
    """The form of a spec. Raises UserError whose `param` is the place at fault; nothing is compiled yet.

    `search`: give hints for the search of a short end too, which takes a moment; `example` helps with patterns.
    """
    _check_markers(spec, spec.param)
    form = _form(spec, spec.param, search, example)
    if not spec.around:
        return form
    _check_size(spec.around, spec.param)
    _refusing(check_grammar_ends, f'{spec.around}\nanswer: "a"\n', spec.param)
    return replace(form, around=spec.around)


def _form(spec: GrammarSpec, param: str, search: bool, example: Example) -> Form:
    if spec.whitespace_pattern is not None:
        check_pattern(spec.whitespace_pattern, f"{param}.whitespace_pattern")
    match spec.kind:
        case "json_schema":
            return _json(spec, spec.source, param, search, example)
        case "json_object":
            return _json(spec, ANY_OBJECT, param, search, example)
        case "regex":
            _check_regex(spec.source, param)
            return Form("regex", spec.source)
        case "choice":
            return _choice(spec.source, param)
        case "grammar":
            _check_size(spec.source, param)
            if not spec.source.strip():
                raise UserError(f"{param} must not be empty.", param=param)
            text = _refusing(lark.from_any, spec.source, param)
            _refusing(check_grammar_ends, text, param)
            return Form("lark", text)
        case "structural_tag":
            tag = _tag(spec.source, param)
            _refusing(lark.from_tag, tag, param)
            return Form("structural_tag", msgspec.json.encode(tag).decode(), hints=_tag_hints(tag))


def _json(spec: GrammarSpec, source: str, param: str, search: bool, example: Example) -> Form:
    schema = _parsed(source, param)
    check_schema(schema, param)
    check_references(schema, schema, param)
    if schema is False:
        raise UserError(f"{param} is false, which no value can satisfy.", param=param, code="invalid_value")
    check_schema_ends(schema, param)
    schema = {} if schema is True else schema
    schema = normal(schema, schema, closed=not spec.additional_properties)
    return Form(
        "json_schema",
        msgspec.json.encode(schema).decode(),
        any_whitespace=spec.any_whitespace,
        whitespace_pattern=spec.whitespace_pattern,
        hints=hints(schema, example) if search else (),
        longest=longest(schema) if search else 0,
    )


def _parsed(source: str, param: str) -> Any:
    data = source.encode("utf-8", "replace")
    if len(data) > MAX_JSON_BYTES:
        raise UserError(f"{param} may have at most {MAX_JSON_BYTES} bytes.", param=param)
    if _depth(data) > MAX_JSON_DEPTH:
        raise UserError(f"{param} nests deeper than {MAX_JSON_DEPTH}.", param=param)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        raise UserError(f"{param} is not valid JSON.", param=param, code="invalid_json") from None


def _depth(data: bytes) -> int:
    """How deep brackets nest; those inside strings count too, which only makes it strict on oddities."""
    depth = deepest = 0
    for byte in re.sub(rb'"(?:[^"\\]|\\.)*"', b"", data).translate(None, _NOT_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _check_regex(source: str, param: str) -> None:
    if not source:
        raise UserError(f"{param} must not be empty.", param=param)
    if len(source) > MAX_REGEX_CHARS:
        raise UserError(f"{param} may have at most {MAX_REGEX_CHARS} characters.", param=param)
    check_pattern(source, param)


def _choice(source: str, param: str) -> Form:
    texts = _parsed(source, param)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise UserError(f"{param} must be a list of texts that are not empty.", param=param)
    if len(texts) > MAX_CHOICES:
        raise UserError(f"{param} may hold at most {MAX_CHOICES} texts.", param=param)
    texts = list(dict.fromkeys(texts))
    return Form(
        "choice", msgspec.json.encode(texts).decode(), hints=tuple(text.encode() for text in sorted(texts, key=len))
    )


def _refusing(make: Any, source: Any, param: str) -> str:
    try:
        text: str = make(source) or ""
    except Refused as error:
        raise UserError(f"{param} {error.message}", param=param) from None
    if len(text) > 4 * MAX_GRAMMAR_BYTES:
        raise UserError(f"{param} is too long.", param=param)
    return text


def _tag(source: str, param: str) -> Any:
    """A structural tag whose schemas are well formed, and that asks for nothing that is passed over."""
    tag = _parsed(source, param)
    for node in _tag_nodes(tag):
        if node.get("excludes"):
            raise UserError(f"{param} has excludes, which cannot be enforced.", param=param)
        for key in filter(node.__contains__, _TAG_SCHEMAS):
            check_schema(node[key], f"{param}.{key}")
            check_references(node[key], node[key], f"{param}.{key}")
    return tag


def _tag_nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of a tag, but those of its schemas."""
    if isinstance(node, list):
        for item in node:
            yield from _tag_nodes(item)
    elif isinstance(node, dict):
        yield node
        for key, value in node.items():
            if key not in _TAG_SCHEMAS:
                yield from _tag_nodes(value)


def _tag_hints(tag: Any) -> tuple[bytes, ...]:
    """Short ends of the schemas in a tag, and the texts that close it."""
    nodes = list(_tag_nodes(tag))
    schemas = [node[key] for node in nodes for key in _TAG_SCHEMAS if isinstance(node.get(key), dict)]
    ends = [node[key].encode() for node in nodes for key in ("end", "value") if isinstance(node.get(key), str)]
    found = [hint for schema in schemas for hint in hints(schema)]
    return tuple(dict.fromkeys(filter(None, [*ends, *found])))


def _check_size(source: str, param: str) -> None:
    if len(source.encode("utf-8", "replace")) > MAX_GRAMMAR_BYTES:
        raise UserError(f"{param} may have at most {MAX_GRAMMAR_BYTES} bytes.", param=param)


def _check_markers(spec: GrammarSpec, param: str) -> None:
    markers = list(spec.after)
    if spec.thoughts is not None:
        markers += [*spec.thoughts.closings, *filter(None, [spec.thoughts.opening])]
        if not spec.thoughts.closings:
            raise UserError(f"{param}: the thoughts before the constraint have no end.", param=param)
    if len(markers) > 2 * MAX_MARKERS or any(not 0 < len(text) <= MAX_MARKER_CHARS for text in markers):
        raise UserError(f"{param}: a marker that starts the constraint is empty or too long.", param=param)
