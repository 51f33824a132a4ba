"""Series of numbers that one thread writes and Prometheus reads: counts, histograms, and gauges asked for on demand.

The event loop is the only writer, so a count is a float and an observation is one bisection. prometheus_client takes a
lock and walks to the child by its labels each time. Whoever observes often holds the child itself: no label is looked
up for a token. The text is written on the event loop too, where a millisecond is a millisecond of every stream: names,
labels and bounds of a child are laid out once, as a pattern that its numbers are put into.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

MAX_CHILDREN = 512
OTHER = "other"

Reading = tuple[tuple[str, ...], float]
Labels = Sequence[tuple[str, str]]


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

    kind = "gauge"

    def __init__(self, name: str, text: str, labels: tuple[str, ...] = (), *, vllm: bool = False) -> None:
        self.name = name
        self.text = text
        self.labels = labels
        self.vllm = vllm

    def children(self) -> Iterable[tuple[tuple[str, ...], tuple[float, ...]]]:
        """Each set of labels and its numbers, in the order of `pattern`."""
        raise NotImplementedError

    def pattern(self, name: str, labels: Labels) -> str:
        """The lines of one set of labels, with a place for each number."""
        return f"{_line(name, labels)} %s\n"


class Counts(Family):
    """Counters. Beyond MAX_CHILDREN sets of labels all others share one, so that no caller can fill memory."""

    kind = "counter"

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

    def children(self) -> Iterable[tuple[tuple[str, ...], tuple[float, ...]]]:
        return ((own, (child.value,)) for own, child in self._children.items())


class Tallies(Family):
    """Histograms over the same bounds, bounded in number as `Counts` are."""

    kind = "histogram"

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

    def children(self) -> Iterable[tuple[tuple[str, ...], tuple[float, ...]]]:
        for own, child in self._children.items():
            counts = tuple(accumulate(child.counts))
            yield own, (*counts, counts[-1], child.sum)

    def pattern(self, name: str, labels: Labels) -> str:
        buckets = [_line(f"{name}_bucket", [*labels, ("le", bound)]) for bound in self._names]
        parts = [*buckets, _line(f"{name}_count", labels), _line(f"{name}_sum", labels)]
        return "".join(f"{part} %s\n" for part in parts)


class Gauges(Family):
    """Values that are asked for when somebody looks. `read` gives each set of labels and its value."""

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

    def children(self) -> Iterable[tuple[tuple[str, ...], tuple[float, ...]]]:
        return ((own, (value,)) for own, value in self._read())


class Totals(Gauges):
    """Counters that somebody else keeps."""

    kind = "counter"


class Info(Family):
    """The value 1 with facts as labels, as they are when somebody looks; nothing while there are none."""

    def __init__(self, name: str, text: str, read: Callable[[], dict[str, str]], *, vllm: bool = False) -> None:
        super().__init__(name, text, vllm=vllm)
        self._read = read

    def children(self) -> Iterable[tuple[tuple[str, ...], tuple[float, ...]]]:
        facts = self._read()
        if facts:
            self.labels = tuple(facts)
            yield tuple(facts.values()), (1.0,)


class Shown:
    """A family under one of its names. A pattern is laid out when its labels are first seen, and kept."""

    def __init__(self, family: Family, name: str, head: Labels) -> None:
        self._family = family
        self._name = f"{name}_total" if family.kind == "counter" else name
        self._head = tuple(head)
        self._top = f"# HELP {self._name} {family.text}\n# TYPE {self._name} {family.kind}\n"
        self._patterns: dict[tuple[str, ...], str] = {}

    def write(self) -> Iterator[str]:
        """The family's text, in parts."""
        family, patterns = self._family, self._patterns
        yield self._top
        for own, numbers in family.children():
            pattern = patterns.get(own)
            if pattern is None:
                labels = [*self._head, *zip(family.labels, own)]
                pattern = patterns[own] = family.pattern(self._name, labels)
            yield pattern % numbers


class Page:
    """All families of one server, under ``octavo:`` and, where asked, those that vLLM has under ``vllm:`` too."""

    def __init__(self, model: str, *, compat: bool = False) -> None:
        """`model`: the first served name."""
        self._model = model
        self._compat = compat
        self._own: list[Shown] = []
        self._vllm: list[Shown] = []

    def add(self, *families: Family) -> None:
        """Families in the order in which they are shown."""
        own = (("model_name", self._model),)
        self._own += [Shown(each, f"octavo:{each.name}", own) for each in families]
        if self._compat:
            theirs = (*own, ("engine", "0"))
            self._vllm += [Shown(each, f"vllm:{each.name}", theirs) for each in families if each.vllm]

    def write(self) -> str:
        """The text exposition format, version 0.0.4."""
        return "".join(part for shown in (*self._own, *self._vllm) for part in shown.write())


def _line(name: str, labels: Labels) -> str:
    """A sample up to its number, fit for a pattern. Labels stand in alphabetical order, as elsewhere."""
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels))
    return (f"{name}{{{pairs}}}" if pairs else name).replace("%", "%%")


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
