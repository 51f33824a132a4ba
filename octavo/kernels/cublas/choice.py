"""Which of cuBLAS's algorithms a product takes: the one that was the quickest here, not the one it guesses.

Its guess is a tenth off for some sizes, and a third for a few. So before a step is captured it is run once, the
products that it left to cuBLAS are noted, and each is measured by every algorithm that the library offers. Steps that
are launched kernel by kernel take what is known of their sizes, long ones what is known of a size close by.

Legend: T tokens, K input size, N output features.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch.nn import functional as F

from octavo.kernels.cublas.kept import KeptChoices, Sizes
from octavo.kernels.cublas.library import Algorithm, Cublas, CublasError, cublas, readable

ROUNDS = 5
MATRICES = 4  # weights of one shape that take turns, so that none is found in a cache; of few tokens
GAIN = 0.98  # of the time of cuBLAS's own choice: less is noise
LONG = 1024  # tokens, from which the best algorithm changes slowly
NEAR = 2.0  # times as many tokens, or as few
KEPT = 1024  # sizes that something was taken over for
_BYTES = 4e12  # a second
_FLOPS = 7e14
_WORTH = 1e-5  # seconds: in shorter products little is to be gained

Run = Callable[[], object]


class Chooser:
    """The choices of one device."""

    def __init__(self, library: Cublas, times: Callable[[Sequence[Run]], list[float]], kept: KeptChoices) -> None:
        """`times`: seconds of each of several ways."""
        self._library = library
        self._times = times
        self._kept = kept
        self._known: dict[Sizes, Algorithm | None] = {}
        self._near: dict[Sizes, Algorithm | None] = {}  # taken over from another number of tokens
        self._noted: dict[Sizes, list[torch.Tensor]] | None = None

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """``[T, K] x [N, K] -> [T, N]``."""
        sizes = (*weight.shape, x.shape[0], x.dtype)
        if not readable(x, weight):
            return F.linear(x, weight)
        if self._noted is not None and sizes not in self._known:
            matrices = self._noted.setdefault(sizes, [])
            if len(matrices) < (MATRICES if sizes[2] < LONG else 1):
                matrices.append(weight)
        algorithm = self._known[sizes] if sizes in self._known else self._from_near(sizes)
        if algorithm is None:
            return F.linear(x, weight)
        return self._library.multiply(x, weight, algorithm, x.new_empty((x.shape[0], weight.shape[0])))

    def tune(self, work: Run) -> None:
        """Run `work`, then choose for what it has multiplied. Nothing may be captured meanwhile."""
        with self._noting() as noted:
            work()
        for sizes, matrices in noted.items():
            self._known[sizes] = self._chosen(sizes, matrices) if _worth(sizes) else None
        self._kept.write()
        self._near.clear()

    def _chosen(self, sizes: Sizes, matrices: list[torch.Tensor]) -> Algorithm | None:
        """As an earlier start did, or by measurement."""
        if sizes in self._kept:
            algorithm = self._kept[sizes]
            if algorithm is None or self._library.can(sizes, algorithm):
                return algorithm
        try:
            algorithm = self._best(sizes, matrices)
        except (torch.OutOfMemoryError, CublasError):
            return None
        self._kept.tell(sizes, algorithm)
        return algorithm

    @contextmanager
    def _noting(self) -> Iterator[dict[Sizes, list[torch.Tensor]]]:
        noted = self._noted = {}
        try:
            yield noted
        finally:
            self._noted = None

    def _best(self, sizes: Sizes, matrices: list[torch.Tensor]) -> Algorithm | None:
        """None: cuBLAS's own choice. Raises CublasError, and torch.OutOfMemoryError where memory is short."""
        features, size, tokens, dtype = sizes
        x = torch.empty((tokens, size), dtype=dtype, device=matrices[0].device).normal_()
        out = x.new_empty((tokens, features))
        algorithms = self._library.algorithms(x, matrices[0])
        ways: list[Callable[[torch.Tensor], object]] = [lambda weight: torch.mm(x, weight.t(), out=out)]
        ways += [partial(self._library.multiply, x, algorithm=each, out=out) for each in algorithms]
        times = self._times([partial(_through, way, matrices) for way in ways])
        best = min(range(len(times)), key=times.__getitem__)
        return algorithms[best - 1] if best and times[best] < GAIN * times[0] else None

    def _from_near(self, sizes: Sizes) -> Algorithm | None:
        """What is known of the number of tokens that is nearest, where there are many and it is near enough."""
        if sizes[2] < LONG:
            return None
        if sizes not in self._near:
            if len(self._near) >= KEPT:
                self._near.clear()
            algorithm = self._nearest(*sizes)
            fits = algorithm is not None and self._library.can(sizes, algorithm)
            self._near[sizes] = algorithm if fits else None
        return self._near[sizes]

    def _nearest(self, features: int, size: int, tokens: int, dtype: torch.dtype) -> Algorithm | None:
        apart = {
            max(known / tokens, tokens / known): algorithm
            for (*matrix, known, kind), algorithm in self._known.items()
            if (*matrix, kind) == (features, size, dtype) and known >= LONG
        }
        nearest = min(apart, default=NEAR + 1)
        return apart[nearest] if nearest <= NEAR else None


_TUNED: dict[int, Chooser] = {}  # by the device's number; until something is tuned there nothing is loaded


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``[T, K] x [N, K] -> [T, N]`` by cuBLAS, as `tune` found best."""
    chosen = _TUNED.get(x.device.index) if bias is None and x.is_cuda else None
    return F.linear(x, weight, bias) if chosen is None else chosen.linear(x, weight)


def tune(work: Run, device: torch.device) -> None:
    """As `Tune` in kernels/ops."""
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _TUNED:
        here = torch.device("cuda", index)
        library = cublas(here)
        if library is None:
            work()
            return
        _TUNED[index] = Chooser(library, Stopwatch(here), KeptChoices(library.version, torch.__version__, *_kind(here)))
    _TUNED[index].tune(work)


def _kind(device: torch.device) -> tuple[object, ...]:
    """What kind of device it is."""
    facts = torch.cuda.get_device_properties(device)
    return facts.name, facts.major, facts.minor, facts.multi_processor_count, facts.total_memory


def _worth(sizes: Sizes) -> bool:
    features, size, tokens, _ = sizes
    numbers = features * size
    return max(2 * numbers / _BYTES, 2 * numbers * tokens / _FLOPS) > _WORTH


def _through(multiply: Callable[[torch.Tensor], object], matrices: list[torch.Tensor]) -> None:
    for weight in matrices:
        multiply(weight)


class Stopwatch:
    """Seconds of each of several ways on a GPU, the median of rounds in which they take turns; captured, so the host
    does not count. All on one stream: torch keeps memory for cuBLAS for each that it was ever called on."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, runs: Sequence[Run]) -> list[float]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for run in runs:
                run()
            torch.cuda.synchronize()
            graphs = [_captured(run) for run in runs]
            rounds = [[_replayed(graph) for graph in graphs] for _ in range(ROUNDS)]
            torch.cuda.synchronize()
        return [sorted(begin.elapsed_time(end) / 1e3 for begin, end in each)[ROUNDS // 2] for each in zip(*rounds)]


def _captured(run: Run) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    try:
        run()
    finally:
        graph.capture_end()
    return graph


def _replayed(graph: torch.cuda.CUDAGraph) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Marks before and behind it."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    graph.replay()
    end.record()
    return begin, end
