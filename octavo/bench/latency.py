"""`octavo bench latency`: how long one batch takes, with nobody else there."""

import sys
from typing import Annotated, Any

from msgspec import Struct

from octavo.base.config import EngineConfig, doc
from octavo.bench.data import even
from octavo.bench.offline import facts_of, open_llm, timed
from octavo.bench.report import Row, row
from octavo.bench.stats import percentile


class LatencyOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to run and where to put the numbers."""

    input_len: Annotated[int, doc("Prompt tokens of a request.", ge=1)] = 32
    output_len: Annotated[int, doc("Tokens generated for a request.", ge=2)] = 128
    batch_size: Annotated[int, doc("Requests at once.", ge=1, le=65_536)] = 1
    num_iters_warmup: Annotated[int, doc("Rounds that do not count.", ge=0, le=1000)] = 1
    num_iters: Annotated[int, doc("Rounds that count.", ge=1, le=100_000)] = 5
    output_json: Annotated[str | None, doc("File for the numbers, besides the results folder.")] = None
    result_dir: Annotated[str, doc("Folder of results by machine and day; empty for none.")] = "benchmarks/results"


def measure(options: LatencyOptions, engine: EngineConfig) -> tuple[list[Row], dict[str, Any]]:
    """Time whole batches, and batches of one token; what lies between them is decoding."""
    from tqdm import tqdm  # here, so that help does not wait for it

    first, whole = [], []
    with open_llm(engine) as llm:
        rounds = options.num_iters_warmup + options.num_iters
        for number in tqdm(range(rounds), desc="latency", unit="round", file=sys.stderr):
            short = even(options.batch_size, options.input_len, 1, seed=2 * number)
            full = even(options.batch_size, options.input_len, options.output_len, seed=2 * number + 1)
            one, all_ = timed(llm, short), timed(llm, full)
            if number >= options.num_iters_warmup:
                first.append(one)
                whole.append(all_)
        facts = facts_of(llm, engine)
    name = f"latency-{options.batch_size}x{options.input_len}-{options.output_len}"
    what = f"{options.batch_size} x {options.input_len} in, {options.output_len} out"
    step = (percentile(whole, 50) - percentile(first, 50)) / (options.output_len - 1)
    return [
        row(f"{name}-first-ms", f"{what}, time to first token", 1e3 * percentile(first, 50), "ms"),
        row(f"{name}-p50-s", f"{what}, whole answer, median", percentile(whole, 50), "s"),
        row(f"{name}-p99-s", f"{what}, whole answer, 99th percentile", percentile(whole, 99), "s"),
        row(f"{name}-step-ms", f"{what}, one decode step", 1e3 * step, "ms"),
    ], facts
