"""What structured output costs: masks beside the step they are for, and a newcomer's schema beside running streams."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from octavo.base.config import EngineConfig
from octavo.base.params import SamplingParams, StructuredOutputsParams
from octavo.bench.report import Row, row
from octavo.bench.stats import percentile
from octavo.bench.structured.ask import Asker
from octavo.bench.structured.schemas import question

STREAMS = 8
NEWCOMERS = 8
PAUSE_S = 0.05
NEWCOMER_TOKENS = 72  # the shortest answers have some 60
STREAM_TOKENS = NEWCOMERS * (NEWCOMER_TOKENS + 16)  # so that streams outlast newcomers
BATCHES = (1, 16)
LENGTH = 160
WARM_LENGTH = 64  # the shortest answers have some 45 tokens
SHARE_LIMIT = 2.0  # of a step, in percent
RAISE_LIMIT = 1.1


def schema_of(index: int) -> dict[str, Any]:
    """Schemas that differ in names, kinds and bounds, none of which ends soon."""
    kinds: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "integer", "minimum": index},
        {"enum": [f"red{index}", "green", "blue"]},
        {"type": "string", "pattern": f"^[A-Z]{{2}}-{index}[0-9]{{3,9}}$"},
        {"type": "array", "items": {"type": "number"}, "minItems": 1},
        {"anyOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]},
    ]
    properties = {f"field{index}_{place}": kinds[(index + place) % len(kinds)] for place in range(5)}
    item = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": 1}


def mask_rows(config: EngineConfig) -> list[Row]:
    """Time that the engine spends on masks and on following them, as a share of the time of a step."""
    from octavo.bench.offline import open_llm

    rows = []
    with open_llm(config) as llm:
        for size in BATCHES:
            _answers(llm, size, WARM_LENGTH)  # compiled, and everything warm
            share, note = _share(llm, size)
            what = f"masks and their following, share of the step, batch {size} ({note})"
            rows.append(row(f"J4.{size}", what, share, "%", limit=SHARE_LIMIT, less=True))
    return rows


def _share(llm: Any, size: int) -> tuple[float, str]:
    core = llm._client.engine.core
    seat, pipeline = core._seat, core._pipeline
    spent = {"fill": 0.0, "follow": 0.0}

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*args)
            finally:
                spent[name] += time.perf_counter() - begin

        return run

    riders, review, steps = pipeline._riders, seat.review, core.stats.steps
    pipeline._riders, seat.review = timed("fill", riders), timed("follow", review)
    begin = time.perf_counter()
    try:
        _answers(llm, size, LENGTH)
    finally:
        pipeline._riders = riders
        del seat.review
    seconds, steps = time.perf_counter() - begin, core.stats.steps - steps
    note = ", ".join(f"{name} {1e6 * took / steps:.0f} us" for name, took in spent.items())
    return 100 * sum(spent.values()) / seconds, f"{note} of {1e3 * seconds / steps:.1f} ms"


def _answers(llm: Any, size: int, length: int) -> None:
    params = [
        SamplingParams(
            temperature=1.0,
            seed=index,
            max_tokens=length,
            structured_outputs=StructuredOutputsParams(json=schema_of(index)),
        )
        for index in range(size)
    ]
    llm.generate([f"An example of number {index}:" for index in range(size)], params, use_tqdm=False)


def newcomer_rows(asker: Asker) -> tuple[list[Row], list[str]]:
    """Streams beside newcomers whose schemas are known, then beside newcomers whose schemas are new."""
    known = [schema_of(1000)] * NEWCOMERS
    fresh = [schema_of(2000 + index) for index in range(NEWCOMERS)]
    asker.ask(question(known[0], 64, 0))
    rounds: dict[str, list[float]] = {"known": [], "new": []}
    for _ in range(2):
        rounds["known"] += _beside(asker, known)
        rounds["new"] += _beside(asker, fresh)
        fresh = [schema_of(3000 + index) for index in range(NEWCOMERS)]
    before, after = percentile(rounds["known"], 99), percentile(rounds["new"], 99)
    middle = statistics.median(rounds["new"])
    note = f"{1e3 * after:.1f} of {1e3 * before:.1f} ms, median {1e3 * middle:.1f}"
    what = f"{STREAMS} streams, p99 between tokens while new schemas compile, over known ones ({note})"
    return [row("J5", what, after / before, "x", limit=RAISE_LIMIT, less=True)], []


def _beside(asker: Asker, schemas: list[dict[str, Any]]) -> list[float]:
    """Gaps of the streams while newcomers come, one after another."""

    def stream(index: int) -> list[tuple[float, float]]:
        found = asker.stream(
            {
                "messages": [{"role": "user", "content": f"Count from {index} up to a thousand."}],
                "temperature": 1,
                "seed": index,
                "max_tokens": STREAM_TOKENS,
                "ignore_eos": True,
            }
        )
        return list(zip(found.arrivals[1:], found.gaps))

    with ThreadPoolExecutor(STREAMS) as threads:
        running = [threads.submit(stream, index) for index in range(STREAMS)]
        time.sleep(0.5)
        begin = time.perf_counter()
        for index, schema in enumerate(schemas):
            reply = asker.ask(question(schema, NEWCOMER_TOKENS, index))
            if reply.status != 200:
                raise ValueError(f"a newcomer was refused: {reply.message}")
            time.sleep(PAUSE_S)
        end = time.perf_counter()
        return [gap for future in running for at, gap in future.result() if begin <= at <= end]
