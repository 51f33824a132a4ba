"""From StructuredOutputsParams, in a caller's words, to a GrammarSpec, in the engine's. Shape only: the engine says
whether a constraint can be enforced."""

from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any

import msgspec

from octavo.base.errors import UserError
from octavo.base.params import CONSTRAINTS, SamplingParams, StructuredOutputsParams
from octavo.base.wire import Vocabulary
from octavo.grammar.spec import GrammarSpec, Kind
from octavo.text.tokenizer import Tokenizer

PARAM = "structured_outputs"
_KINDS: dict[str, Kind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json_object",
    "structural_tag": "structural_tag",
}
_JSON = ("json_schema", "json_object")


def given_spec(params: SamplingParams) -> GrammarSpec | None:
    """The constraint that sampling parameters hold. Raises UserError."""
    given = params.structured_outputs
    return spec_of(given) if given is not None and given.given else None


def spec_of(
    params: StructuredOutputsParams, *, after: Sequence[str] = (), min_tokens: int = 0, param: str | None = None
) -> GrammarSpec:
    """`after`: texts behind which the constraint begins. `param`: the field to name in errors. Raises UserError."""
    given = params.given
    if len(given) != 1:
        raise UserError(f"{param or PARAM} takes exactly one of {', '.join(CONSTRAINTS)}.", param=param or PARAM)
    kind, value = _KINDS[given[0]], getattr(params, given[0])
    budget = params.finish_within_budget
    return GrammarSpec(
        kind=kind,
        source=_source(kind, value),
        backend=params.backend,
        any_whitespace=not params.disable_any_whitespace,
        whitespace_pattern=params.whitespace_pattern,
        additional_properties=not params.disable_additional_properties,
        after=tuple(after),
        finish_within_budget=kind in _JSON if budget is None else budget,
        min_tokens=min_tokens,
        param=param or f"{PARAM}.{given[0]}",
    )


def _source(kind: Kind, value: Any) -> str:
    if kind == "json_object":
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def vocabulary_of(tokenizer: Tokenizer) -> Callable[[], Vocabulary] | None:
    """Tells what each token stands for, worked out the first time; None for a tokenizer whose tokens mean nothing
    without their neighbours."""
    pieces = tokenizer.pieces
    if pieces is None:
        return None

    @cache
    def found() -> Vocabulary:
        tokens = pieces.listed(tokenizer.vocab_size)
        return Vocabulary(tokens, special=sorted(tokenizer.special_ids), ends=list(tokenizer.eos_ids))

    lock = Lock()

    def tell() -> Vocabulary:
        with lock:  # of two that come at once, each would work it all out
            return found()

    return tell
