"""Series of numbers that one thread writes and Prometheus reads: counts, histograms, and gauges asked for on demand.

The event loop is the only writer, so a count is a float and an observation is one bisection. prometheus_client takes a
lock and walks to the child by its labels each time; here it only writes the text. Whoever observes often holds the
child itself: no label is looked up for a token.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

MAX_CHILDREN = 512
OTHER = "other"

Reading = tuple[tuple[str, ...], float]


class Count:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1.0) -> None:
        self.value += by


class Tally:
    """A histogram: how many values fell at or under each bound, and their sum."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """`value`, seen so many times."""
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


class Family:
    """One name: what it means, its labels, and whether vLLM has it too, under the same name after its own prefix."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...] = (), *, vllm: bool = False) -> None:
        self.name = name
        self.text = text
        self.labels = labels
        self.vllm = vllm

    def metric(self, name: str, head: tuple[str, ...], values: tuple[str, ...]) -> Metric:
        """The family as Prometheus text wants it. `head` and `values`: labels that go before its own."""
        raise NotImplementedError


class Counts(Family):
    """Counters. Beyond MAX_CHILDREN sets of labels all others share one, so that no caller can fill memory."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...] = (), *, vllm: bool = False) -> None:
        super().__init__(name, text, labels, vllm=vllm)
        self._children: dict[tuple[str, ...], Count] = {}

    def of(self, *values: str) -> Count:
        """The counter with these labels; look it up once and keep it."""
        child = self._children.get(values)
        if child is None:
            values = values if len(self._children) < MAX_CHILDREN else (OTHER,) * len(self.labels)
            child = self._children.setdefault(values, Count())
        return child

    def metric(self, name: str, head: tuple[str, ...], values: tuple[str, ...]) -> Metric:
        family = CounterMetricFamily(name, self.text, labels=[*head, *self.labels])
        for own, child in self._children.items():
            family.add_metric([*values, *own], child.value)
        return family


class Tallies(Family):
    """Histograms over the same bounds, bounded in number as `Counts` are."""

    def __init__(
        self, name: str, text: str, bounds: Sequence[float], labels: tuple[str, ...] = (), *, vllm: bool = False
    ) -> None:
        super().__init__(name, text, labels, vllm=vllm)
        self._bounds = tuple(bounds)
        self._names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._children: dict[tuple[str, ...], Tally] = {}

    def of(self, *values: str) -> Tally:
        """The histogram with these labels; look it up once and keep it."""
        child = self._children.get(values)
        if child is None:
            values = values if len(self._children) < MAX_CHILDREN else (OTHER,) * len(self.labels)
            child = self._children.setdefault(values, Tally(self._bounds))
        return child

    def named(self, name: str) -> "Tallies":
        """The same histograms under another name."""
        other = Tallies(name, self.text, self._bounds, self.labels, vllm=self.vllm)
        other._children = self._children
        return other

    def metric(self, name: str, head: tuple[str, ...], values: tuple[str, ...]) -> Metric:
        family = HistogramMetricFamily(name, self.text, labels=[*head, *self.labels])
        for own, child in self._children.items():
            family.add_metric([*values, *own], list(zip(self._names, accumulate(child.counts))), child.sum)
        return family


class Gauges(Family):
    """Values that are asked for when somebody looks. `read` gives each set of labels and its value."""

    form: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily

    def __init__(
        self,
        name: str,
        text: str,
        read: Callable[[], Iterable[Reading]],
        labels: tuple[str, ...] = (),
        *,
        vllm: bool = False,
    ) -> None:
        super().__init__(name, text, labels, vllm=vllm)
        self._read = read

    def metric(self, name: str, head: tuple[str, ...], values: tuple[str, ...]) -> Metric:
        family = self.form(name, self.text, labels=[*head, *self.labels])
        for own, value in self._read():
            family.add_metric([*values, *own], value)
        return family


class Totals(Gauges):
    """Counters that somebody else keeps."""

    form = CounterMetricFamily


class Info(Family):
    """The value 1 with facts as labels, as they are when somebody looks; nothing while there are none."""

    def __init__(self, name: str, text: str, read: Callable[[], dict[str, str]], *, vllm: bool = False) -> None:
        super().__init__(name, text, vllm=vllm)
        self._read = read

    def metric(self, name: str, head: tuple[str, ...], values: tuple[str, ...]) -> Metric:
        facts = self._read()
        family = GaugeMetricFamily(name, self.text, labels=[*head, *facts])
        if facts:
            family.add_metric([*values, *facts.values()], 1.0)
        return family


class Page(Collector):
    """All families of one server, under ``octavo:`` and, where asked, those that vLLM has under ``vllm:`` too."""

    def __init__(self, model: str, *, compat: bool = False) -> None:
        """`model`: the first served name."""
        self._model = model
        self._compat = compat
        self.families: list[Family] = []

    def add(self, *families: Family) -> None:
        """Families in the order in which they are shown."""
        self.families += families

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client writes down."""
        for family in self.families:
            yield family.metric(f"octavo:{family.name}", ("model_name",), (self._model,))
        for family in self.families if self._compat else ():
            if family.vllm:
                yield family.metric(f"vllm:{family.name}", ("model_name", "engine"), (self._model, "0"))
