"""Percentiles and means of what was measured."""

from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest ranks, as numpy does; NaN for no values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: Sequence[float]) -> float:
    """NaN for no values."""
    return sum(values) / len(values) if values else float("nan")
