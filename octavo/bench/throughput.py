"""`octavo bench throughput`: what continuous batching gives, and how well the KV cache is used.

Two parts. The batching table runs 1, 4, 16 and 64 equal requests at once. The mixed set runs requests of very
different lengths and watches how many reserved KV slots stay empty.
"""

import sys
from statistics import median
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from octavo.base.config import EngineConfig, doc
from octavo.bench.data import Load, even, mixed
from octavo.bench.offline import Watch, facts_of, open_llm, timed
from octavo.bench.report import Row, row
from octavo.bench.stats import mean

WASTE_LIMIT_PERCENT = 4.0
CPU_MIXED = {"count": 12, "min_out": 25, "max_out": 256}
"""The mixed set on a CPU: the same prompts, fewer of them, and answers a quarter as long."""


class ThroughputOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to run and where to put the numbers."""

    batch_sizes: Annotated[
        list[Annotated[int, Meta(ge=1, le=65_536)]], doc("Requests at once, one row of the table each.")
    ] = field(default_factory=lambda: [1, 4, 16, 64])
    input_len: Annotated[int, doc("Prompt tokens of a request in the table.", ge=1)] = 30
    output_len: Annotated[int, doc("Tokens generated for a request in the table.", ge=2)] = 60
    rounds: Annotated[int, doc("Rounds of each row, after one that warms up; the median counts.", ge=1, le=1000)] = 3
    mixed_requests: (
        Annotated[
            int, doc("Requests of the mixed set; 0 leaves it out. Unset: 256 on a GPU, 12 shorter ones on a CPU.", ge=0)
        ]
        | None
    ) = None
    output_json: Annotated[str | None, doc("File for the numbers, besides the results folder.")] = None
    result_dir: Annotated[str, doc("Folder of results by machine and day; empty for none.")] = "benchmarks/results"


def measure(options: ThroughputOptions, engine: EngineConfig) -> tuple[list[Row], dict[str, Any]]:
    """Run both parts; gives the rows and facts on the model for the report. Progress goes to stderr."""
    with open_llm(engine) as llm:
        rows = [entry for size in options.batch_sizes for entry in batching_rows(llm, options, size)]
        load = mixed_load(options.mixed_requests, on_cpu=llm.resolved.device == "cpu")
        if len(load):
            rows += mixed_rows(llm, load)
        return rows, facts_of(llm, engine)


def batching_rows(llm: Any, options: ThroughputOptions, size: int) -> list[Row]:
    """One row of the table: `size` equal requests at once, the median of the rounds."""
    from tqdm import tqdm  # here, so that help does not wait for it

    seconds = []
    for number in tqdm(range(options.rounds + 1), desc=f"{size:>3} at once", unit="round", file=sys.stderr):
        load = even(size, options.input_len, options.output_len, seed=1000 * size + number)
        seconds.append(timed(llm, load))
    took = median(seconds[1:])
    return [
        row(f"batch-{size}-tok-s", f"{size} at once, output", size * options.output_len / took, "tok/s"),
        row(f"batch-{size}-request-s", f"{size} at once, time of a request", took, "s"),
    ]


def mixed_load(count: int | None, *, on_cpu: bool) -> Load:
    """The mixed set: as engines are compared on a GPU, scaled down on a CPU."""
    if not on_cpu:
        return mixed(256 if count is None else count)
    return mixed(**{**CPU_MIXED, **({} if count is None else {"count": count})})


def mixed_rows(llm: Any, load: Load) -> list[Row]:
    """Run the mixed set; its throughput, and the share of reserved KV slots that held nothing."""
    print(f"mixed set: {len(load)} requests, {load.total_out} tokens out ...", file=sys.stderr)
    with Watch(llm) as gauges:
        took = timed(llm, load)
    total = sum(len(prompt) for prompt in load.prompts) + load.total_out
    return [
        row("mixed-output-tok-s", "mixed lengths, output", load.total_out / took, "tok/s"),
        row("mixed-total-tok-s", "mixed lengths, prompts and output", total / took, "tok/s"),
        row("mixed-running", "mixed lengths, requests running", mean(gauges.running), "requests"),
        row("kv-usage", "mixed lengths, KV blocks owned", 100 * mean(gauges.usage), "%"),
        row("kv-waste", "mixed lengths, KV waste", 100 * mean(gauges.waste), "%", limit=WASTE_LIMIT_PERCENT),
    ]


def verdict(rows: list[Row]) -> str | None:
    """What went over its limit, None when nothing did."""
    for entry in rows:
        # Written so that NaN, a waste that was not measured, fails too.
        if entry.id == "kv-waste" and not entry.value < WASTE_LIMIT_PERCENT:
            return f"KV waste is {entry.value:g}%, the limit is {WASTE_LIMIT_PERCENT:g}%"
    return None
