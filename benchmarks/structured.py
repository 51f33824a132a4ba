"""Structured output held against a real model: ``python benchmarks/structured.py --model FILE.gguf``.

Schemas are those of benchmarks/schemas.jsonl: the ones of the JSON-Schema-Test-Suite (2020-12 and draft 7; MIT, Julian
Berman) and 200 that hypothesis and hypothesis-jsonschema made once. Every 200 must parse and validate, every 400 must
say why. Needs jsonschema. Rows J1 to J8 go to benchmarks/results in the form of the other benchmarks.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))

from octavo.base.config import EngineConfig, ModelConfig  # noqa: E402
from octavo.bench.report import Row, row, table, write  # noqa: E402
from octavo.bench.structured import cost, hostile, room, schemas, tools  # noqa: E402
from octavo.bench.structured.ask import Asker  # noqa: E402
from octavo.cli.own_server import own_server  # noqa: E402

SEED_FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
        },
    },
    "required": ["name", "age", "tags", "address"],
}


def json_rows(asker: Asker, options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    cases = schemas.read_cases(HERE / "schemas.jsonl")[:: options.every]
    whole = schemas.Tally()
    for found in asker.each(lambda pair: schemas.check_case(asker, pair[1], pair[0]), list(enumerate(cases))):
        whole.add(found)
    answers = whole.valid + len(whole.faults)
    for reason, count in whole.reasons.most_common(40):
        print(f"  {count:4d} refused: {reason}", file=sys.stderr)
    note = (
        f"{len(cases)} schemas, {answers} answers, {whole.refused} schemas refused by name, {whole.too_short} too short"
    )
    return [
        row("J1", f"JSON that parses and validates ({note})", 100 * whole.valid / answers, "%", limit=100)
    ], whole.faults


def seed_rows(asker: Asker, options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    del options
    case = schemas.Case("seed form", SEED_FORM)

    def one(seed: int) -> schemas.Tally:
        return schemas.judge(case, 64, asker.ask(schemas.question(SEED_FORM, 64, seed)))

    found = asker.each(one, list(range(48)))
    valid = sum(tally.valid for tally in found)
    return [row("J2", "valid JSON of 48, max_tokens 64", valid, "answers", limit=48)], [
        f for t in found for f in t.faults
    ]


def tool_rows(asker: Asker, options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    rows, faults = [], []
    names = list(tools.PARAMETERS)
    for id, what in (("J3", "required"), ("J3.named", "named")):
        asked = list(enumerate(tools.prompts(200)))[:: options.every]

        def one(pair: tuple[int, str], named: bool = what == "named") -> schemas.Tally:
            return tools.check_call(asker, pair[1], pair[0], names[pair[0] % len(names)] if named else None)

        found = asker.each(one, asked)
        faults += [fault for tally in found for fault in tally.faults]
        share = 100 * sum(tally.valid for tally in found) / len(asked)
        rows.append(
            row(id, f"calls with arguments that fit, tool_choice {what}, {len(asked)} prompts", share, "%", limit=100)
        )
    return rows, faults


def room_rows(asker: Asker, _: argparse.Namespace) -> tuple[list[Row], list[str]]:
    found = [room.check(asker, form, message) for form in room.FORMS for message in room.MESSAGES]
    faults = [fault for tally in found for fault in tally.faults]
    valid = sum(tally.valid for tally in found)
    what = f"labels with little room that are those without a limit, {valid + len(faults)} answers"
    return [row("J8", what, 100 * valid / max(1, valid + len(faults)), "%", limit=100)], faults


SERVED: dict[str, Callable[[Asker, argparse.Namespace], tuple[list[Row], list[str]]]] = {
    "json": json_rows,
    "seed": seed_rows,
    "tools": tool_rows,
    "room": room_rows,
    "newcomers": lambda asker, _: cost.newcomer_rows(asker),
    "hostile": lambda asker, _: hostile.rows(asker),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Structured output held against a real model.")
    parser.add_argument("--model", required=True, help="a model that `octavo serve` takes")
    parser.add_argument("--only", default="", help=f"of {', '.join([*SERVED, 'masks'])}; all if unset")
    parser.add_argument("--every", type=int, default=1, help="each so many-th schema and prompt only")
    parser.add_argument("--threads", type=int, help="of the engine")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name] or [*SERVED, "masks"]
    rows: list[Row] = []
    faults: list[str] = []
    config = EngineConfig(model=ModelConfig(model=options.model, max_model_len=options.max_model_len))
    if options.threads:
        config = EngineConfig(model=config.model, device=type(config.device)(threads=options.threads))

    def keep(name: str, found: tuple[list[Row], list[str]]) -> None:
        rows.extend(found[0])
        faults.extend(found[1])
        print(table(found[0]), flush=True)
        for fault in found[1]:
            print(f"  fault: {fault}", flush=True)
        write(options.out, f"python benchmarks/structured.py --only {name}", found[0])

    if set(wanted) - {"masks"}:
        with own_server(config) as client:
            asker = Asker(int(client.url.rpartition(":")[2]))
            for name in [name for name in SERVED if name in wanted]:
                keep(name, SERVED[name](asker, options))
    if "masks" in wanted:
        keep("masks", (cost.mask_rows(config), []))
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
