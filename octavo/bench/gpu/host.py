"""Where a step's time goes: what the host does beside waiting, and how long the GPU stands idle."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from octavo.base.plan import StepPlan, StepResult

DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
MIDDLE = (0.65, 0.95)  # the part of a profiled run that is looked at: its prompts come first, its end thins out


@dataclass(frozen=True, slots=True)
class HostTime:
    """Median seconds of a step on the host: all but the wait for results, and what of it the worker takes."""

    whole: float
    mean: float  # of the same; some steps give blocks, most do not
    forward: float
    sample: float
    read: float
    steps: int  # that were looked at


class _Watched:
    """A pending result whose wait is counted, and the reading behind it."""

    def __init__(self, inner: Any, meter: "_Meter") -> None:
        self._inner = inner
        self._meter = meter

    def done(self) -> bool:
        return bool(self._inner.done())

    def result(self) -> StepResult:
        begin = time.perf_counter()
        while not self._inner.done():
            pass
        there = time.perf_counter()
        result: StepResult = self._inner.result()
        self._meter.waited += there - begin
        self._meter.step.read = time.perf_counter() - there
        return result


@dataclass(slots=True)
class _Step:
    begin: float
    waited: float  # in all, before it
    rows: int
    tokens: Sequence[int]  # of each row
    forward: float = 0.0
    sample: float = 0.0
    read: float = 0.0  # of the result that came while it was the newest step


class _Meter:
    """Stands before an executor's `forward` and `sample`."""

    def __init__(self, executor: Any) -> None:
        self._forward, self._sample = executor.forward, executor.sample
        self.waited = 0.0
        self.steps: list[_Step] = []

    @property
    def step(self) -> _Step:
        return self.steps[-1]

    def forward(self, plan: StepPlan) -> None:
        begin = time.perf_counter()
        self.steps.append(_Step(begin, self.waited, len(plan.rows), plan.num_tokens))
        self._forward(plan)
        self.step.forward = time.perf_counter() - begin

    def sample(self, riders: dict[str, Any]) -> _Watched:
        begin = time.perf_counter()
        pending = self._sample(riders)
        self.step.sample = time.perf_counter() - begin
        return _Watched(pending, self)


def host_time(executor: Any, run: Callable[[], object], rows: int) -> HostTime:
    """From one step's start to the next without the wait for results.

    Only decode steps of `rows` requests count: plan, batch, launches, sampling, update and detokenization.
    """
    meter = _Meter(executor)
    executor.forward, executor.sample = meter.forward, meter.sample
    try:
        run()
    finally:
        del executor.forward, executor.sample
    pairs = [(step, then) for step, then in pairwise(meter.steps) if step.rows == sum(step.tokens) == rows]
    if not pairs:
        raise RuntimeError(f"no step decoded {rows} requests at once")
    whole = [(then.begin - step.begin) - (then.waited - step.waited) for step, then in pairs]
    return HostTime(
        whole=median(whole),
        mean=mean(whole),
        forward=median(step.forward for step, _ in pairs),
        sample=median(step.sample for step, _ in pairs),
        read=median(step.read for step, _ in pairs),
        steps=len(pairs),
    )


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
