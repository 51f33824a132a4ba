"""The figures of a run: printed as they come, and written after each one, so that a kill loses nothing."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.bench import report
from octavo.bench.gpu.peers import Peers
from octavo.bench.gpu.rows import LIMITS_OF, POINTS
from octavo.bench.hardware import Machine


class Results:
    """Rows and errors of this run, laid over those that the file holds of an earlier one."""

    def __init__(self, path: Path | None, *, command: str, facts: dict[str, Any], peers: Peers, found: Machine) -> None:
        """`path` None: print only."""
        self.rows: list[report.Row] = []
        self.errors: dict[str, str] = {}
        self._path = path
        self._command = command
        self._facts = facts
        self._peers = peers
        self._found = found
        self._bounded = found.slug == LIMITS_OF

    def add(self, point: str, value: float, note: str = "") -> None:
        """One figure."""
        kind = POINTS[point]
        made = report.row(
            point,
            f"{kind.what} ({note})" if note else kind.what,
            value,
            kind.unit,
            limit=kind.limit if self._bounded else None,
            peer=self._peers.text(point),
            less=kind.less,
        )
        self.rows.append(made)
        print(line(made), flush=True)
        self._write([made], {})

    def fail(self, ids: list[str], message: str) -> None:
        """Rows that could not be measured, and why."""
        told = dict.fromkeys(ids, message)
        self.errors |= told
        for id in ids:
            print(f"{id:<12} failed: {message}", flush=True)
        self._write([], told)

    def passed(self, id: str) -> None:
        """A job is through: what went wrong in it in an earlier run is told no longer."""
        self._write([], {id: None})

    def finish(self) -> None:
        """The table of the run."""
        print("\n" + "\n".join(line(entry) for entry in self.rows))
        for id, message in self.errors.items():
            print(f"{id:<12} failed: {message}")
        if self._path:
            print(f"written to {self._path}", file=sys.stderr)

    def _write(self, rows: list[report.Row], errors: Mapping[str, str | None]) -> None:
        if self._path:
            report.write_to(self._path, self._command, rows, self._facts, errors=errors, found=self._found)


def line(entry: report.Row) -> str:
    """A row for a terminal."""
    share = "" if entry.fraction is None else f"{100 * entry.fraction:.0f}% of {entry.limit:g}"
    peer = f"   [{entry.peer}]" if entry.peer else ""
    return f"{entry.id:<12} {entry.value:>10,.5g} {entry.unit:<12} {share:<14} {entry.what}{peer}"
