"""Writes the pages that are made from code and results; `--check` only says whether they are up to date."""

import sys
from pathlib import Path

from octavo.bench import report
from octavo.bench.gpu.page import decode_chart
from octavo.bench.gpu.peers import Peers
from octavo.bench.gpu.rows import AIMS, LIMITS_OF, POINTS
from octavo.cli import reference

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PEERS = ROOT / "benchmarks" / "peers"
NOTES = ROOT / "benchmarks" / "notes"
DOCS = ROOT / "docs"

PERFORMANCE_HEAD = """# Performance

*This page is made by `make docs` from the files under `benchmarks/results/`, the newest of each machine.*

`make bench` measures the demo model on your machine and writes such a file; `python benchmarks/gpu.py` measures every
row of one GPU in less than nine minutes. `limit` is what a number is held against, `of it` the share that was reached
(limit over value where less is better), `aim` what this project set out to reach and, if it has not, how much of that
it has, `peer` what other engines gave on the same machine with the same load.
Numbers from machines that others use at the same time lie low; the file says how many cores and which threads.
"""


def newest() -> dict[str, report.Report]:
    """The last file of each machine."""
    folders = sorted(path for path in RESULTS.iterdir() if path.is_dir()) if RESULTS.is_dir() else []
    files = {folder.name: sorted(folder.glob("*.json")) for folder in folders}
    return {name: report.read(found[-1]) for name, found in files.items() if found}


def performance_page() -> str:
    """One table a machine, under its chart where there is one."""
    parts = [PERFORMANCE_HEAD]
    for name, found in newest().items():
        parts.append(machine_table(name, found))
    if len(parts) == 1:
        parts.append("No machine has been measured yet.\n")
    return "\n".join(parts)


def machine_table(name: str, found: report.Report) -> str:
    facts = found.machine
    named = [("", "cpu"), ("", "system"), ("torch ", "torch"), ("Octavo ", "octavo")]
    what = ", ".join(f"{word}{facts[key]}" for word, key in named if facts.get(key))
    lines = [f"## {name}\n", f"{found.date}; {what}\n"]
    lines += [f"`{command}`\n" for command in found.command.split(" && ")]
    if decode_chart(found, peers_of(name)):
        lines.append(f"![Tokens a second over batch size, beside other engines and the limit]({name}-decode.svg)\n")
    lines += ["| what | value | unit | aim | limit | of it | peer |", "|---|---:|---|---:|---:|---:|---|"]
    for row in in_order(found.rows):
        limit = "" if row.limit is None else f"{row.limit:g}"
        share = "" if row.fraction is None else f"{100 * row.fraction:.0f}%"
        label = f"{row.id}: " if row.id in POINTS else ""
        cells = (f"{label}{row.what}", f"{row.value:,.5g}", row.unit, aim(name, row), limit, share, row.peer or "")
        lines.append(f"| {' | '.join(cells)} |")
    if found.errors:
        lines += ["\nNot measured:\n", *(f"- {id}: {text}" for id, text in found.errors.items())]
    if peers_of(name).note:
        lines.append(f"\nPeers: {peers_of(name).what} {peers_of(name).note}")
    notes = NOTES / f"{name}.md"
    if notes.exists():
        lines.append("\n" + notes.read_text("utf-8").strip())
    return "\n".join(lines) + "\n"


def aim(name: str, row: report.Row) -> str:
    """What the row should have come to, and the share that it has if it has not."""
    wanted = AIMS.get(row.id) if name == LIMITS_OF else None
    if wanted is None:
        return ""
    share = wanted / row.value if POINTS[row.id].less else row.value / wanted
    return f"{wanted:,g}" if share >= 1 else f"{wanted:,g} ({100 * share:.0f}%)"


def in_order(rows: list[report.Row]) -> list[report.Row]:
    """Rows of the GPU suite in its order, others as they came."""
    places = {id: place for place, id in enumerate(POINTS)}
    return sorted(rows, key=lambda row: places.get(row.id, len(places)))


def peers_of(name: str) -> Peers:
    return Peers.read(PEERS / f"{name}.json")


def pages() -> dict[Path, str]:
    """Each made file and what should stand in it."""
    made = {DOCS / "reference" / "flags.md": reference.page(), DOCS / "performance.md": performance_page()}
    charts = {name: decode_chart(found, peers_of(name)) for name, found in newest().items()}
    return made | {DOCS / f"{name}-decode.svg": svg for name, svg in charts.items() if svg}


def main() -> int:
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text}
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: make docs", file=sys.stderr)
        return 1 if stale else 0
    for path, text in stale.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
