"""Schemas to hold a server against, and what an answer must be: valid, or a refusal that says why."""

import json
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

from msgspec import Struct

from octavo.bench.structured.ask import Asker, Reply

WHERE = "response_format.json_schema.schema"
NEEDS = re.compile(r"needs (\d+) tokens")
LIMITS = (8, 24, 96)
REASONS = (
    "no value can satisfy",
    "Unsatisfiable",
    "no text was found",
    "nests deeper",
    "to compile",
    "regular expression",
)


class Case(Struct, frozen=True):
    """A schema and where it is from."""

    name: str
    schema: Any


class Tally(Struct):
    """What became of the questions. `faults`: answers that are neither valid nor a refusal with a reason."""

    valid: int = 0
    refused: int = 0
    too_short: int = 0  # refused since the shortest instance has no room
    faults: list[str] = []
    reasons: Counter[str] = Counter()

    def add(self, other: "Tally") -> None:
        self.valid += other.valid
        self.refused += other.refused
        self.too_short += other.too_short
        self.faults = self.faults + other.faults
        self.reasons = self.reasons + other.reasons


def read_cases(path: Path) -> list[Case]:
    """One JSON object a line: ``{"from": ..., "schema": ...}``."""
    with path.open(encoding="utf-8") as file:
        return [Case(line["from"], line["schema"]) for line in map(json.loads, file)]


def question(schema: Any, limit: int, seed: int, **fields: Any) -> dict[str, Any]:
    """A chat whose answer must fit the schema."""
    return {
        "messages": [{"role": "user", "content": "Give me an example, please."}],
        "temperature": 1,
        "seed": seed,
        "max_tokens": limit,
        "response_format": {"type": "json_schema", "json_schema": {"name": "example", "schema": schema}},
        **fields,
    }


def check_case(asker: Asker, case: Case, seed: int) -> Tally:
    """Ask with each limit; where the answer says how many tokens it needs, ask again with just so many."""
    whole = Tally()
    for limit in LIMITS:
        reply = asker.ask(question(case.schema, limit, seed))
        needed = NEEDS.search(reply.message)
        whole.add(judge(case, limit, reply))
        if needed is not None and limit == LIMITS[0]:
            exact = int(needed[1])
            again = asker.ask(question(case.schema, exact, seed + 1))
            found = judge(case, exact, again)
            if again.status != 200:
                found.faults = [*found.faults, f"{case.name}: {exact} tokens were said to do: {again.message}"]
            whole.add(found)
        elif reply.status == 400 and needed is None:
            break  # other limits change nothing
    return whole


def judge(case: Case, limit: int, reply: Reply) -> Tally:
    """Hold one answer against the schema."""
    if reply.status == 400:
        if NEEDS.search(reply.message):
            return Tally(too_short=1)
        if names_reason(case.schema, reply.message):
            return Tally(refused=1, reasons=Counter([reply.message[:120]]))
        return Tally(faults=[f"{case.name}: refused without a reason: {reply.message}"])
    if reply.status != 200:
        return Tally(faults=[f"{case.name}: HTTP {reply.status}: {reply.body}"[:400]])
    text = reply.body["choices"][0]["message"]["content"]
    fault = misfit(case.schema, text)
    return Tally(valid=1) if fault is None else Tally(faults=[f"{case.name}, {limit} tokens: {fault}: {text!r}"[:400]])


def names_reason(schema: Any, message: str) -> bool:
    """Whether a refusal names a word of the schema, or another reason that the caller can act on."""
    return any(reason in message for reason in REASONS) or any(word in message for word in _words(schema))


def misfit(schema: Any, text: str) -> str | None:
    """Why a text is no instance of a schema; None if it is one. Formats count where the validator knows them."""
    import jsonschema

    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON ({error})"
    draft = jsonschema.Draft202012Validator
    kind = jsonschema.validators.validator_for(schema, default=draft) if isinstance(schema, dict) else draft
    try:
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)
    except jsonschema.ValidationError as error:
        return None if _is_multiple(error) else str(error.message)[:200]
    return None


def _is_multiple(error: Any) -> bool:
    """Whether the validator lost a digit: it divides floats."""
    return error.validator == "multipleOf" and not Fraction(str(error.instance)) % Fraction(str(error.validator_value))


def _words(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(_words, schema))
    if isinstance(schema, dict):
        return {key for key in schema if len(key) > 1}.union(*map(_words, schema.values()))
    return set()
