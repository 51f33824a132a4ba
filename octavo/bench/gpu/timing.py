"""Timing work on a device."""

import statistics
import time
from collections.abc import Callable

import torch

ROUNDS = 5
TARGET_S = 0.2  # of device time in one round


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Median seconds of one call, over rounds of as many calls as make a round long enough to time."""
    once = _round(work, 1, device)  # also the warm-up
    once = min(once, _round(work, 1, device))
    calls = max(1, min(200, int(TARGET_S / max(once, 1e-6))))
    return statistics.median(_round(work, calls, device) / calls for _ in range(ROUNDS))


def _round(work: Callable[[], object], calls: int, device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    torch.cuda.synchronize(device)
    return float(begin.elapsed_time(end)) / 1e3


def repeated(measure: Callable[[], float], times: int, limit_s: float) -> list[float]:
    """Values of up to `times` runs; no run begins once `limit_s` seconds would not hold one more like the last."""
    values: list[float] = []
    start = time.perf_counter()
    for _ in range(times):
        begun = time.perf_counter()
        values.append(measure())
        now = time.perf_counter()
        if now - start + (now - begun) > limit_s:
            break
    return values
