"""Writes the pages that are made from code and results; `--check` only says whether they are up to date."""

import sys
from pathlib import Path

from octavo.bench import report
from octavo.cli import reference

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

PERFORMANCE_HEAD = """# Performance

*This page is made by `make docs` from the files under `benchmarks/results/`, the newest of each machine.*

`make bench` measures the demo model on your machine and writes such a file. `limit` is what a number is held against,
`peer` the best figure of another engine on the same machine with the same load. Numbers from machines that others
use at the same time lie low; the file says how many cores and which threads.
"""


def performance_page() -> str:
    """One table a machine."""
    parts = [PERFORMANCE_HEAD]
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()) if RESULTS.is_dir() else []:
        files = sorted(folder.glob("*.json"))
        if files:
            parts.append(machine_table(folder.name, report.read(files[-1])))
    if len(parts) == 1:
        parts.append("No machine has been measured yet.\n")
    return "\n".join(parts)


def machine_table(name: str, found: report.Report) -> str:
    facts = found.machine
    what = ", ".join(str(facts[key]) for key in ("cpu", "system", "model", "dtype") if facts.get(key))
    lines = [f"## {name}\n", f"{found.date}; {what}\n"]
    lines += [f"`{command}`\n" for command in found.command.split(" && ")]
    lines += ["| what | value | unit | limit | peer |", "|---|---:|---|---:|---|"]
    for row in found.rows:
        limit = "" if row.limit is None else f"{row.limit:g}"
        lines.append(f"| {row.what} | {row.value:,.5g} | {row.unit} | {limit} | {row.peer or ''} |")
    return "\n".join(lines) + "\n"


PAGES = {
    ROOT / "docs" / "reference" / "flags.md": reference.page,
    ROOT / "docs" / "performance.md": performance_page,
}


def main() -> int:
    stale = [path for path, make in PAGES.items() if not path.exists() or path.read_text("utf-8") != make()]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: make docs", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGES[path](), encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
