"""A server's ``/metrics`` read into numbers, and what two readings say: rates, shares, quantiles."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]

PREFIX = "octavo:"


@dataclass(frozen=True, slots=True)
class Reading:
    """All samples of one scrape, by name without the prefix and by labels."""

    at: float  # monotonic seconds
    samples: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def total(self, name: str, **labels: str) -> float:
        """The sum over all samples of a name that have these labels; 0 where there is none."""
        wanted = set(labels.items())
        return sum(value for own, value in self.samples.get(name, {}).items() if wanted <= own)

    def values(self, name: str, label: str) -> list[str]:
        """The values that a label takes, in the order of the page."""
        seen = (value for own in self.samples.get(name, {}) for key, value in own if key == label)
        return list(dict.fromkeys(seen))


def read(text: str, at: float | None = None) -> Reading:
    """The samples of a page of metrics. ValueError for a text that is none."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name.removeprefix(PREFIX), {})[frozenset(sample.labels.items())] = sample.value
    return Reading(time.monotonic() if at is None else at, found)


@dataclass(frozen=True, slots=True)
class Span:
    """Two readings of one server. Where the first is empty, rates are 0 and quantiles are over all time."""

    before: Reading
    now: Reading

    @property
    def seconds(self) -> float:
        return self.now.at - self.before.at

    def grew(self, name: str, **labels: str) -> float:
        """How much a counter grew; all of it after a restart of the server."""
        now, before = self.now.total(name, **labels), self.before.total(name, **labels)
        return now - before if now >= before else now

    def rate(self, name: str, **labels: str) -> float:
        """Growth a second."""
        return self.grew(name, **labels) / self.seconds if self.before.samples and self.seconds > 0 else 0.0

    def share(self, part: str, whole: str) -> float | None:
        """Growth of one counter over that of another; over all time when nothing grew, None without anything."""
        grown = self.grew(whole)
        if grown > 0:
            return self.grew(part) / grown
        ever = self.now.total(whole)
        return self.now.total(part) / ever if ever else None

    def quantile(self, share: float, name: str, **labels: str) -> float | None:
        """A quantile of a histogram in between, by Prometheus' rule; over all time when nothing came, None for none."""
        fresh = self._buckets(name, labels, self.before)
        return _quantile(share, fresh) or _quantile(share, self._buckets(name, labels, None))

    def _buckets(self, name: str, labels: dict[str, str], before: Reading | None) -> list[tuple[float, float]]:
        bounds = sorted(self.now.values(f"{name}_bucket", "le"), key=float)
        return list(_grown(self.now, before, name, bounds, labels))


def _grown(
    now: Reading, before: Reading | None, name: str, bounds: list[str], labels: dict[str, str]
) -> Iterator[tuple[float, float]]:
    for bound in bounds:
        count = now.total(f"{name}_bucket", le=bound, **labels)
        old = before.total(f"{name}_bucket", le=bound, **labels) if before else 0.0
        yield float(bound), count - old if count >= old else count


def _quantile(share: float, buckets: list[tuple[float, float]]) -> float | None:
    """Linear inside the bucket where the rank falls, as histogram_quantile has it."""
    if not buckets or not buckets[-1][1]:
        return None
    rank, low, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    return low
