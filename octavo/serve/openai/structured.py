"""What the answer must look like, from the three ways in which clients say it: OpenAI's `response_format`, vLLM's
`structured_outputs`, and the `guided_*` fields of older vLLM."""

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.base.errors import UnknownName, UserError, bad_value, missing
from octavo.base.params import StructuredOutputsParams
from octavo.grammar.registry import choices
from octavo.grammar.schema import check_pattern
from octavo.grammar.spec import GrammarSpec
from octavo.serve.openai.schema import ResponseFormat, Sampled
from octavo.text.structured import spec_of

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "structural_tag": "structural_tag",
}


def grammar_of(body: Sampled, after: Sequence[str] = ()) -> GrammarSpec | None:
    """The constraint of a body, None without one; `after`: texts behind which it begins. UserError for two at once."""
    found = [spec for spec in (_format(body, after), _structured(body, after), _guided(body, after)) if spec]
    if len(found) > 1:
        raise UserError(
            f"{found[0].param.partition('.')[0]} and {found[1].param.partition('.')[0]} cannot both be given.",
            param=found[1].param.partition(".")[0],
            code="invalid_value",
        )
    return found[0] if found else None


def _format(body: Sampled, after: Sequence[str]) -> GrammarSpec | None:
    given = body.response_format
    if given is None:
        return None
    param = "response_format"
    for name in ("json_schema", "schema"):
        if given.type != "json_schema" and getattr(given, name) is not None:
            raise bad_value(f"{param}.{name}", "goes with type json_schema")
    if given.type == "text":
        return None
    match given.type:
        case "json_object":
            return _spec({"json_object": True}, body, after, param)
        case "json_schema":
            if given.json_schema is None or given.json_schema.schema is None:
                param = f"{param}.json_schema.schema"
                raise missing(param)
            return _spec({"json": given.json_schema.schema}, body, after, f"{param}.json_schema.schema")
        case "structural_tag":
            return _spec({"structural_tag": _tag(given)}, body, after, param)
    raise bad_value("response_format.type", "must be text, json_object, json_schema or structural_tag")


def _tag(given: ResponseFormat) -> dict[str, Any]:
    if given.format is not None:
        return {"format": given.format}
    return {"structures": given.structures or [], "triggers": given.triggers or []}


def _structured(body: Sampled, after: Sequence[str]) -> GrammarSpec | None:
    given = body.structured_outputs
    if not given:
        return None
    name = "structured_outputs"
    try:
        params = msgspec.convert(given, StructuredOutputsParams)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "").replace(" - at $", " at ")
        raise UserError(f"{name}: {reason}.", param=name, code="invalid_value") from None
    if not params.given:
        return None
    _check_options(params, f"{name}.whitespace_pattern", f"{name}.backend")
    return spec_of(params, after=after, param=f"{name}.{params.given[0]}" if len(params.given) == 1 else name)


def _guided(body: Sampled, after: Sequence[str]) -> GrammarSpec | None:
    given = [name for name in _GUIDED if getattr(body, name) is not None]
    if body.guided_json_object is False:
        given.remove("guided_json_object")
    if not given:
        return None
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} cannot both be given.", param=given[1], code="invalid_value")
    return _spec({_GUIDED[given[0]]: getattr(body, given[0])}, body, after, given[0])


def _spec(constraint: dict[str, Any], body: Sampled, after: Sequence[str], param: str) -> GrammarSpec:
    params = StructuredOutputsParams(
        **constraint,
        backend=body.guided_decoding_backend or "auto",
        whitespace_pattern=body.guided_whitespace_pattern,
    )
    _check_options(params, "guided_whitespace_pattern", "guided_decoding_backend")
    return spec_of(params, after=after, param=param)


def _check_options(params: StructuredOutputsParams, pattern: str, backend: str) -> None:
    """What stands beside a constraint, under the names it was given by: those are lost with the spec. UserError."""
    if params.whitespace_pattern is not None:
        check_pattern(params.whitespace_pattern, pattern)
    if params.backend != "auto":
        try:
            choices(params.backend)
        except UnknownName as error:
            raise UserError(f"{backend}: {error}.", param=backend, code="invalid_value") from None
