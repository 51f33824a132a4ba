"""Run all drills of tests/faults and write docs/reliability.md from what came of them.

python scripts/faults.py                          # everything but the soak: 20 runs a drill, 100 of the quick ones
python scripts/faults.py --runs 100 --model qwen.gguf
python scripts/faults.py --soak 30                # the soak too, 30 minutes of it
"""

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
KEPT = ROOT / "docs" / "reliability.json"

HEAD = """# What Octavo survives

Made by `python scripts/faults.py`, which runs `tests/faults` and writes down what came of it. A drill lets one thing go
wrong, run after run under other seeds, and holds each time what is promised: every stream to the token, no block left
in use, no process left over. *Held* counts the runs that did, of those that were asked for; a drill ends at its first
failure, or when its time is over. *Recovered* is the time from the fault until work went on (median, worst).

How it works: a supervisor in the API process owns the engine's process. When it ends, for whatever reason, the next is
started with sockets and a key of its own, so that nothing the last one said can reach it; open requests go on there
from prompt and delivered tokens. Randomness is a stream keyed by (seed, position), so the continuation is the same.
Those that saw the crash start in parts; if the engine dies again, the part on trial is at fault: it gets a 500 of its
own, and the rest go on. A step that raises without ending the process is done again in halves until the request at
fault is alone; one that lacks memory is done again smaller. More than `--max-engine-restarts` within ten minutes end
the server with one line.

"""

TAIL = """
## What it does not cover

- The engine of most drills computes with a fake model whose next token is a function of all tokens before it, so that
  a lost or doubled token cannot hide; drills M are a real model. These drills raise a GPU's faults and do not cause
  them. `tests/gpu/test_gpu_faults.py` does: on an H200 a kernel that wrote where no memory is, an index out of range
  and a kill under 8 streams each cost one restart (back after 4.1 to 5.7 s, every stream whole, the memory of the lost
  engine free again), and allocations that failed inside the model made steps smaller.
- Rounding: a real model's continuation is computed by a prefill where the undisturbed run decoded. The last bits of the
  logits may differ, and with them, rarely, a token; what was delivered never changes.
- A flipped bit inside the numbers of a weight file is not found: neither safetensors nor GGUF has checksums.
- Several GPUs, a router with replicas, adapters and media have no drills here (F1, F17 to F20): they come with those
  features. The supervisor lives in the API process, so F4, its death, is F3.
- Time is the machine's: where two cores had the work of twenty to do, F3 once took longer than its five seconds (the
  processes were killed and waited for a core to end on); rerun under less it held ten times of ten. F11 with 10,000
  connections ended three series in their first three runs while others had both cores (p99 of /health 56 to 140 ms).
- Memory in S1 is what a process has written to, swap included. Pages of library files are not in it: whether they
  count as a process's own depends on which other processes have the same files mapped just then.
- A request that survives one crash and is part of a second from outside gets its 500 too: it is a suspect by then.
"""


def main() -> int:
    """Exit status 1 if a drill did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=int, default=20, help="seeded runs a drill; five times as many of the quick ones"
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="after which a drill begins no further run; 0: none")
    parser.add_argument("--model", default="", help="a real model's file, for the drills M")
    parser.add_argument("--soak", type=float, default=0.0, help="minutes of soak; 0: none")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page from the last results")
    parser.add_argument("-k", default="", help="only these tests, as pytest's -k; others keep their last result")
    asked = parser.parse_args()
    if asked.page:
        write([])
        return 0
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            code = run(asked, results)
        except KeyboardInterrupt:  # what was found until then counts
            code = 130
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    found = [json.loads(line) for line in lines]
    write(found)
    bad = [line["id"] for line in found if line["verdict"] != "held"]
    print(f"{len(found)} drills, {len(bad)} did not hold{': ' + ', '.join(bad) if bad else ''}")
    return 1 if bad or code else 0


def run(asked: argparse.Namespace, results: Path) -> int:
    """pytest over the drills; its exit status."""
    environment = {
        **os.environ,
        "OCTAVO_FAULTS_RUNS": str(asked.runs),
        "OCTAVO_FAULTS_MINUTES": str(asked.minutes or "inf"),
        "OCTAVO_FAULTS_RESULTS": str(results),
        "OCTAVO_FAULTS_MODEL": str(Path(asked.model).resolve()) if asked.model else "",
        "OCTAVO_SOAK_MINUTES": str(asked.soak),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "pytest", "tests/faults", "-q", "--timeout", "10000"]
    command += [] if asked.soak else ["--deselect", "tests/faults/test_faults_soak.py::test_soak"]
    command += ["-k", asked.k] if asked.k else []
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def write(found: list[dict[str, Any]]) -> None:
    """The page, from these results and the last of the drills that were not run."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    today = datetime.date.today().isoformat()
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    for line in found:
        kept[line["id"]] = {**line, "date": today, "machine": machine, "load": round(os.getloadavg()[2])}
    kept = dict(sorted(kept.items(), key=lambda item: _order(item[0])))
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    rows = ["| | What goes wrong | What holds | Held | Recovered | Verdict |", "|---|---|---|---|---|---|"]
    for line in kept.values():
        took = "" if line["median_s"] is None else f"{line['median_s']:.2f} s, {line['worst_s']:.2f} s"
        note = f" ({line['note']})" if line["note"] else ""
        held = f"{line['runs']} of {line.get('wanted', line['runs'])}"
        cells = [line["id"], line["what"], line["promise"] + note, held, took, line["verdict"]]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    made = "; ".join(sorted({f"{line['date']}, {line['machine']}" for line in kept.values()}))
    loads = [line.get("load", 0) for line in kept.values()]
    made += f"; the machine's load was up to {max(loads, default=0)}"
    PAGE.write_text(HEAD + "\n".join(rows) + f"\n\nRun on {made}.\n" + TAIL, encoding="utf-8")


def _order(id: str) -> tuple[str, int, str]:
    letter, rest = id[0], id[1:]
    digits = rest.split(" ")[0]
    return letter, int(digits) if digits.isdigit() else 0, id


if __name__ == "__main__":
    sys.exit(main())
