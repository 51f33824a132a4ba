"""A drill: something goes wrong, again and again under other seeds, and what was promised must hold each time.

What came of it goes to the file that OCTAVO_FAULTS_RESULTS names, one JSON line a drill; scripts/faults.py makes
docs/reliability.md of them. OCTAVO_FAULTS_RUNS says how many runs a drill has; one whose runs take less than a second
has five times as many. None begins another run when it has gone on for OCTAVO_FAULTS_MINUTES.
"""

import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

RUNS = int(os.environ.get("OCTAVO_FAULTS_RUNS", "1"))
MINUTES = float(os.environ.get("OCTAVO_FAULTS_MINUTES", "inf"))
RESULTS = os.environ.get("OCTAVO_FAULTS_RESULTS", "")
MODEL = os.environ.get("OCTAVO_FAULTS_MODEL", "")
"""A model's file for the drills that want a real one."""


class Drill:
    """`recovered` holds seconds, one a run, where there is something to recover from."""

    def __init__(self) -> None:
        self.runs = 0  # that held
        self.wanted = 0
        self.recovered: list[float] = []
        self.note = ""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """The time from the fault until all is well."""
        begin = time.monotonic()
        yield
        self.recovered.append(time.monotonic() - begin)

    def seeds(self, *, cheap: bool = False, most: int = 1000) -> Iterator[Random]:
        """One generator a run. `most`: where a run takes minutes."""
        self.wanted = min(5 * RUNS if cheap and RUNS > 1 else RUNS, most)
        end = time.monotonic() + 60 * MINUTES
        for seed in range(self.wanted):
            yield Random(seed)
            self.runs += 1
            if time.monotonic() > end:
                break


@contextmanager
def drill(id: str, what: str, promise: str) -> Iterator[Drill]:
    """`id` sorts the table. An exception inside is the verdict."""
    one = Drill()
    verdict = "failed"
    try:
        yield one
        one.runs = one.runs or 1
        verdict = "held"
    finally:
        if verdict == "failed" and one.wanted:
            verdict = f"failed with seed {one.runs}"
        if RESULTS:
            times = sorted(one.recovered)
            line = {
                "id": id,
                "what": what,
                "promise": promise,
                "runs": one.runs,
                "wanted": one.wanted or 1,
                "median_s": round(statistics.median(times), 3) if times else None,
                "worst_s": round(times[-1], 3) if times else None,
                "note": one.note,
                "verdict": verdict,
            }
            with Path(RESULTS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
