"""`octavo bench latency|throughput|serve`: measure, show a table, keep the numbers."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from octavo.base.config import EngineConfig
from octavo.bench import latency, report, serve, throughput
from octavo.bench.hardware import version
from octavo.cli.client import Client
from octavo.cli.command import Command, dispatch, need_model


class Outputs(Protocol):
    """Where a benchmark's numbers go."""

    @property
    def output_json(self) -> str | None: ...
    @property
    def result_dir(self) -> str: ...


def run_latency(options: latency.LatencyOptions, engine: EngineConfig) -> int:
    need_model(engine, "bench latency MODEL")
    rows, facts = latency.measure(options, engine)
    keep(options, rows, facts)
    return 0


def run_throughput(options: throughput.ThroughputOptions, engine: EngineConfig) -> int:
    """Exit code 1 when the KV cache wastes more than its limit."""
    need_model(engine, "bench throughput MODEL")
    rows, facts = throughput.measure(options, engine)
    keep(options, rows, facts)
    over = throughput.verdict(rows)
    if over:
        print(f"octavo: {over}", file=sys.stderr)
    return 1 if over else 0


def run_serve(options: serve.ServeBenchOptions) -> int:
    model = options.model or Client(options.base_url, options.api_key).models()[0]
    rows, facts = serve.measure(options, model)
    keep(options, rows, facts)
    return 0


def keep(options: Outputs, rows: list[report.Row], facts: dict[str, Any]) -> None:
    """Print the table and write the files that were asked for."""
    print(report.table(rows))
    if options.output_json:
        report.write_json(Path(options.output_json), {**facts, **{entry.id: entry.value for entry in rows}})
    if options.result_dir:
        subject = " ".join(str(facts[key]) for key in ("model", "dtype") if key in facts)
        command = "octavo " + shlex.join(sys.argv[1:])
        told = {"torch": version("torch") or "none"}
        path = report.write(Path(options.result_dir), command, report.about(subject, rows), told)
        print(f"written to {path}", file=sys.stderr)


BENCHMARKS = {
    "latency": Command(
        name="bench latency",
        summary="Time one batch with nobody else there.",
        roots=(latency.LatencyOptions, EngineConfig),
        run=run_latency,
        positional="model",
    ),
    "throughput": Command(
        name="bench throughput",
        summary="Output of 1, 4, 16 and 64 requests at once, and how well the KV cache is used.",
        roots=(throughput.ThroughputOptions, EngineConfig),
        run=run_throughput,
        positional="model",
    ),
    "serve": Command(
        name="bench serve",
        summary="A running server under load: times to first token, between tokens, and whole; output rate.",
        roots=(serve.ServeBenchOptions,),
        run=run_serve,
        example="octavo bench serve --num-prompts 200 --request-rate 4",
    ),
}


def COMMAND(argv: Sequence[str]) -> int:
    """Pick the benchmark and run it."""
    return dispatch("bench", "benchmark", BENCHMARKS, argv)
