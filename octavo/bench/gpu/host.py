"""Where a step's time goes: what the host does beside waiting, and how long the GPU stands idle."""

import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from octavo.base.plan import StepPlan, StepResult

DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
MIDDLE = (0.65, 0.95)  # the part of a profiled run that is looked at: its prompts come first, its end thins out


class _Watched:
    """A pending result whose wait is counted."""

    def __init__(self, inner: Any, meter: "_Meter") -> None:
        self._inner = inner
        self._meter = meter

    def done(self) -> bool:
        return bool(self._inner.done())

    def result(self) -> StepResult:
        begin = time.perf_counter()
        while not self._inner.done():
            pass
        self._meter.waited += time.perf_counter() - begin
        result: StepResult = self._inner.result()
        return result


class _Meter:
    """Stands before an executor's `forward` and `sample`."""

    def __init__(self, executor: Any) -> None:
        self._forward, self._sample = executor.forward, executor.sample
        self.waited = 0.0
        self.steps: list[tuple[float, float, int, int]] = []  # begun, waited before, rows, tokens

    def forward(self, plan: StepPlan) -> None:
        self.steps.append((time.perf_counter(), self.waited, len(plan.rows), plan.total_tokens))
        self._forward(plan)

    def sample(self, riders: dict[str, Any]) -> _Watched:
        return _Watched(self._sample(riders), self)


def host_seconds(executor: Any, run: Callable[[], object], rows: int) -> tuple[float, int]:
    """Median seconds from one step's start to the next without the wait for results, and of how many steps.

    Only decode steps of `rows` requests count: plan, batch, launches, sampling, update and detokenization.
    """
    meter = _Meter(executor)
    executor.forward, executor.sample = meter.forward, meter.sample
    try:
        run()
    finally:
        del executor.forward, executor.sample
    times = [
        (next_begin - begin) - (next_waited - waited)
        for (begin, waited, had, tokens), (next_begin, next_waited, _, _) in pairwise(meter.steps)
        if had == tokens == rows
    ]
    if not times:
        raise RuntimeError(f"no step decoded {rows} requests at once")
    return statistics.median(times), len(times)


def busy_share(run: Callable[[], object], folder: str) -> float:
    """The share of time in which the GPU ran anything, over the decoding part of a run."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
    path = Path(folder) / "trace.json"
    profiler.export_chrome_trace(str(path))
    with path.open("rb") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return share_of(events)


def share_of(events: list[dict[str, Any]]) -> float:
    """Busy time over time in the middle part of a Chrome trace: the union of its device events."""
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in DEVICE_KINDS and "dur" in e)
    if not spans:
        raise RuntimeError("the profiler saw nothing run on the device")
    start, end = spans[0][0], max(stop for _, stop in spans)
    low, high = (start + part * (end - start) for part in MIDDLE)
    busy, reached = 0.0, low
    for begin, stop in spans:
        begin, stop = max(begin, reached), min(stop, high)
        if stop > begin:
            busy += stop - begin
            reached = stop
    return float(busy / (high - low))
