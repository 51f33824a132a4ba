"""The form of a result: rows of numbers with their limits, in one JSON file a machine and day.

``benchmarks/results/<hardware>/<date>.json`` holds ``{"machine", "date", "command", "rows"}``.
"""

import datetime
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from octavo.base.errors import ConfigError
from octavo.bench.hardware import Machine, machine

MAX_RESULT_BYTES = 16 << 20


class Row(Struct, frozen=True, kw_only=True):
    """One measured number. `limit` is the bound it is held against, `peer` the best figure of another engine."""

    id: str
    what: str
    value: float
    unit: str
    limit: float | None = None
    fraction: float | None = None  # value / limit; limit / value where less is better
    peer: str | None = None


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one machine gave on one day."""

    machine: dict[str, Any]
    date: str
    command: str
    rows: list[Row]
    errors: dict[str, str] = {}  # rows that could not be measured, and why


def row(
    id: str,
    what: str,
    value: float,
    unit: str,
    *,
    limit: float | None = None,
    peer: str | None = None,
    less: bool = False,
) -> Row:
    """A row with its fraction worked out; values keep five digits. `less`: it is a time, to be brought down."""
    share = limit / value if less and limit and value else value / limit if limit else None
    fraction = None if share is None else _rounded(share)
    return Row(id=id, what=what, value=_rounded(value), unit=unit, limit=limit, fraction=fraction, peer=peer)


def about(subject: str, rows: list[Row]) -> list[Row]:
    """Rows that say what they are about, so that two models share a file: ``model/id``, ``model: what``."""
    replace = msgspec.structs.replace
    return [replace(entry, id=f"{subject}/{entry.id}", what=f"{subject}: {entry.what}") for entry in rows]


def write(folder: Path, command: str, rows: list[Row], facts: dict[str, Any] | None = None) -> Path:
    """Add `rows` to today's file of this machine; a row of the same id is replaced. Returns the file's path."""
    path = folder / machine().slug / f"{datetime.datetime.now(datetime.UTC).date().isoformat()}.json"
    write_to(path, command, rows, facts)
    return path


def write_to(
    path: Path,
    command: str,
    rows: list[Row],
    facts: dict[str, Any] | None = None,
    *,
    errors: Mapping[str, str | None] | None = None,
    found: Machine | None = None,
) -> None:
    """Add `rows` and `errors` to a file of results; what it holds under the same id is replaced. An error None: gone.

    `found` is this machine, for those who write often.
    """
    before = read(path) if path.exists() else None
    merged = {old.id: old for old in before.rows} if before else {}
    merged |= {new.id: new for new in rows if math.isfinite(new.value)}
    failed = {**(before.errors if before else {}), **(errors or {})}
    commands = before.command.split(" && ") if before else []
    commands = [*commands, *([command] if command not in commands else [])]
    report = Report(
        machine={**_describe(found or machine()), **(facts or {})},
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=" && ".join(commands),
        rows=list(merged.values()),
        errors={id: text for id, text in failed.items() if text is not None},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, msgspec.to_builtins(report))


def read(path: Path) -> Report:
    """A report from its file. Raises ConfigError when it is none."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_RESULT_BYTES), type=Report)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: not a report: {error}") from None


def write_json(path: Path, value: Any) -> None:
    """JSON of one space a level, whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(_finite(value), indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def table(rows: list[Row]) -> str:
    """Rows as lines for a terminal."""
    width = max((len(entry.what) for entry in rows), default=0)
    return "\n".join(
        f"{entry.what:<{width}}  {entry.value:>10,.5g} {entry.unit}"
        + (f"   limit {entry.limit:g}" if entry.limit is not None else "")
        for entry in rows
    )


def _describe(found: Machine) -> dict[str, Any]:
    from octavo import __version__

    facts = msgspec.to_builtins(found)
    del facts["available"]
    return {"hardware": found.slug, **facts, "octavo": __version__}


def _rounded(value: float) -> float:
    return float(f"{value:.5g}") if math.isfinite(value) else value


def _finite(value: Any) -> Any:
    """JSON has no NaN: null stands for what could not be measured."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
