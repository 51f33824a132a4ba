"""What each engine is asked for, and how it tells: one JSON line. Standard library only: peers run it in environments
of their own."""

import json
import os
import random
import resource
import statistics
import time
from collections.abc import Callable

BATCHES = (1, 4, 16, 64)
PROMPT, OUT, LONG = 30, 40, 1024
CONTEXT = 2048
ROUNDS = 2
ONLY = os.environ.get("BENCH_ONLY", "")  # start, prefill; empty: everything

Generate = Callable[[int, int, int], float]
"""Batch, prompt tokens, output tokens of each -> seconds."""


STARTED = float(os.environ.get("BENCH_LAUNCHED") or time.perf_counter())
"""When the process was launched, interpreter and all: the clock is the machine's, the same in all processes."""


def rng_of(seed: int) -> random.Random:
    return random.Random(seed)


def prompt(rng: random.Random, length: int) -> list[int]:
    """Random ids that every tokenizer of the measured models has."""
    return [rng.randrange(1000, 10_000) for _ in range(length)]


def decode_rate(generate: Generate, batch: int) -> float:
    """Output tokens a second without the prompts' share: the difference of a long and a short run, the median of
    rounds."""
    rates = []
    for _ in range(ROUNDS):
        short, long = generate(batch, PROMPT, 1), generate(batch, PROMPT, OUT + 1)
        rates.append(batch * OUT / max(long - short, 1e-9))
    return statistics.median(rates)


def measure(
    generate: Generate, first_token: float, shared_prefix: Callable[[], tuple[float, float]] | None = None
) -> None:
    """All figures of one engine, or those that BENCH_ONLY names, printed."""
    found: dict[str, float] = {"start": first_token}
    if not ONLY:
        for batch in BATCHES:
            found[f"decode{batch}"] = decode_rate(generate, batch)
    if ONLY != "start":
        found["prefill"] = LONG / min(generate(1, LONG, 1) for _ in range(ROUNDS))
    if shared_prefix is not None and not ONLY:
        first, second = shared_prefix()
        found["shared_first"], found["shared_second"] = first, second
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("FIGURES " + json.dumps(found), flush=True)
