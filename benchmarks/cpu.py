"""Octavo beside its peers on a CPU: ``python benchmarks/cpu.py --model q4_0=FILE.gguf --peers FOLDER``.

Each peer runs in a virtual environment of its own under FOLDER (`llama`: llama-cpp-python==0.3.36; `openvino`:
openvino-genai==2026.4.1.0); one that is not there, or that cannot read a file, is left out. Engines take turns on the
same machine in one run, `--rounds` times, and the best figure of each counts, for neighbours only ever slow one down.
Rows carry the ids C1 to C7 and go to benchmarks/results in the form of the other benchmarks.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from octavo.bench.report import Row, row, write  # noqa: E402

ENGINES = ROOT / "benchmarks" / "cpu_engines"
PEERS = ("llama", "openvino")
RATES = {
    "decode1": ("C1", "decode at batch 1"),
    "decode16": ("C2.16", "decode at batch 16"),
    "decode64": ("C2.64", "decode at batch 64"),
    "prefill": ("C3", "prefill of 1,024 tokens"),
}
Figures = dict[str, float]


def run_engine(engine: str, python: Path, model: Path, threads: int, timeout: int) -> Figures | None:
    """Figures of one engine on one file; None when it fails, with its last line on stderr."""
    command = [str(python), str(ENGINES / f"{engine}_engine.py"), str(model), str(threads)]
    paths = [str(ENGINES), *([str(ROOT)] if engine == "octavo" else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
    except subprocess.TimeoutExpired:
        print(f"  {engine}: took over {timeout} s", file=sys.stderr)
        return None
    for line in done.stdout.splitlines():
        if line.startswith("FIGURES "):
            figures: Figures = json.loads(line.removeprefix("FIGURES "))
            return figures
    print(f"  {engine}: {(done.stderr.strip().splitlines() or ['no output'])[-1][:200]}", file=sys.stderr)
    return None


def best_of(runs: list[Figures]) -> Figures:
    """The best of each figure: the highest rate, the shortest time."""
    lower = {"start", "memory", "shared_first", "shared_second"}
    return {key: (min if key in lower else max)(run[key] for run in runs) for key in runs[0]}


def measure(model: Path, peers: Path | None, threads: int, rounds: int, timeout: int) -> dict[str, Figures]:
    """Best figures of each engine that runs on the file; engines take turns."""
    pythons = {"octavo": Path(sys.executable)}
    for peer in PEERS:
        python = peers / peer / "bin" / "python" if peers else None
        if python is not None and python.exists():
            pythons[peer] = python
    runs: dict[str, list[Figures]] = {}
    for _ in range(rounds):
        for engine, python in list(pythons.items()):
            figures = run_engine(engine, python, model, threads, timeout)
            if figures is None:
                del pythons[engine]
            else:
                runs.setdefault(engine, []).append(figures)
    return {engine: best_of(found) for engine, found in runs.items()}


def rows_of(name: str, figures: dict[str, Figures]) -> list[Row]:
    """The issue's rows for one file: rates with the best peer beside them, and ratios."""
    ours = figures["octavo"]
    others = {engine: found for engine, found in figures.items() if engine != "octavo"}
    rows = []
    for key, (number, what) in RATES.items():
        peer = max(others, key=lambda engine: others[engine][key], default=None)
        label = f"{peer} {others[peer][key]:.1f} tok/s" if peer else None
        rows.append(row(f"{number}.{name}.rate", f"{what}, {name}", ours[key], "tok/s", peer=label))
        if peer:
            ratio = ours[key] / others[peer][key]
            rows.append(
                row(f"{number}.{name}", f"{what} over the best peer, {name}", ratio, "x", limit=1.1, peer=label)
            )
    shared = ours["shared_second"] / ours["shared_first"]
    rows.append(row(f"C5.{name}", f"first token with a shared prefix over without, {name}", shared, "x", limit=0.05))
    if "llama" in others:
        for key, number, limit in (("start", "C6.start", 1.5), ("memory", "C6.memory", 1.15)):
            ratio = ours[key] / others["llama"][key]
            rows.append(row(f"{number}.{name}", f"{key} over llama.cpp, {name}", ratio, "x", limit=limit))
    gain = ours["decode16"] / ours["decode1"]
    rows.append(row(f"C7.{name}", f"batch 16 over batch 1, {name}", gain, "x", limit=4.5))
    return rows


def table(name: str, figures: dict[str, Figures]) -> str:
    keys = ("decode1", "decode4", "decode16", "decode64", "prefill", "start", "memory")
    lines = [f"| {name} | " + " | ".join(keys) + " |", "|" + " --- |" * (len(keys) + 1)]
    for engine, found in figures.items():
        lines.append(f"| {engine} | " + " | ".join(f"{found[key]:.4g}" for key in keys) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Octavo beside its peers on a CPU.")
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FILE", help="a GGUF file; repeatable")
    parser.add_argument("--peers", type=Path, help="folder with a virtual environment for each peer")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=900, help="seconds an engine may take for one file")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    for given in args.model:
        name, _, file = given.partition("=")
        if not file:
            parser.error(f"--model takes NAME=FILE, not {given!r}")
        figures = measure(Path(file).resolve(), args.peers, args.threads, args.rounds, args.timeout)
        if "octavo" not in figures:
            return 1
        print(table(name, figures), flush=True)
        write(args.out, f"python benchmarks/cpu.py --model {name}", rows_of(name, figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
