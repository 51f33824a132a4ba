"""Stages of the offline API: one engine of random weights, throughput, decode alone and time to first token."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo.bench.data import even
from octavo.bench.gpu.child import Report
from octavo.bench.gpu.held import dress, free_seconds, held_lengths, helped
from octavo.bench.gpu.host import busy_share, host_time
from octavo.bench.gpu.setting import Setting, model_folder
from octavo.bench.gpu.timing import repeated
from octavo.bench.gpu.ways import WAYS, rate
from octavo.bench.offline import timed

MIXED_S = 45.0  # of runs of the mixed set, at most
DECODE_S = 12.0  # of runs of one batch size


class Offline:
    """An LLM and the measurements that both models share."""

    def __init__(self, setting: Setting, shape: str, **options: Any) -> None:
        self._setting = setting
        self._sizes = setting.sizes
        self._shape = shape
        self._options = options
        self._llm: Any = None
        self._seed = 1000  # never the same prompt twice
        self._warm = False
        self._dressed = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        self._llm = self._launch()
        try:
            yield
        finally:
            self._llm.close()

    def _launch(self) -> Any:
        from octavo.llm import LLM

        options = {**self._setting.engine(), "enable_prefix_caching": False, **self._options}
        return LLM(str(self.folder()), **options)

    def folder(self) -> Path:
        """Where the model lies."""
        return model_folder(self._shape, self._setting.folder)

    def mixed(self, report: Report, point: str) -> None:
        """Output tokens a second over the mixed set; the median run."""
        self._warm_up()
        load = self._setting.mixed(self._sizes.count)
        rates = repeated(lambda: load.total_out / timed(self._llm, load), self._sizes.mixed_runs, MIXED_S)
        spread = f", {min(rates):.5g} to {max(rates):.5g}" if len(rates) > 1 else ""
        report(point, statistics.median(rates), f"median of {len(rates)}{spread}" if spread else "")

    def decode(self, report: Report, points: tuple[str, str, str]) -> None:
        """A long run less a run of one token: the rate of decoding alone."""
        sizes = self._sizes
        for point, size in zip(points, sizes.decode_batches):
            self._decode_once(size)
            steps = repeated(lambda size=size: self._decode_once(size), sizes.decode_rounds, DECODE_S)  # type: ignore[misc]
            report(point, size / statistics.median(steps))

    def _decode_once(self, size: int) -> float:
        """Seconds of one decode step."""
        sizes = self._sizes
        first = timed(self._llm, even(size, sizes.decode_in, 1, seed=self._next()))
        whole = timed(self._llm, even(size, sizes.decode_in, sizes.decode_out, seed=self._next()))
        return max(1e-9, (whole - first) / (sizes.decode_out - 1))

    def first(self, report: Report, points: tuple[str, str, str]) -> None:
        """One request for one token, alone."""
        for point, length in zip(points, self._sizes.first_lens):
            for _ in range(2):
                timed(self._llm, even(1, length, 1, seed=self._next()))
            times = [timed(self._llm, even(1, length, 1, seed=self._next())) for _ in range(self._sizes.first_rounds)]
            report(point, 1e3 * statistics.median(times))

    def schemas(self, report: Report, point: str, free_point: str) -> None:
        """Streams that are held to schemas and free ones of the same lengths, by turns; the schemas were compiled
        before."""
        sizes, size = self._sizes, self._sizes.decode_batches[-1]
        if not self._dressed:
            dress(self._llm)
            self._dressed = True
        lengths, first = held_lengths(self._llm, size, sizes, self._next())
        helped(self._llm)
        for _ in range(2):
            held_lengths(self._llm, size, sizes, self._next())
            free_seconds(self._llm, lengths, sizes, self._next())
        held, free = [], []
        for _ in range(sizes.decode_rounds):
            lengths, seconds = held_lengths(self._llm, size, sizes, self._next())
            held.append(sum(lengths) / seconds)
            free.append(sum(lengths) / free_seconds(self._llm, lengths, sizes, self._next()))
        rate, other = statistics.median(held), statistics.median(free)
        report(free_point, other)
        report(point, 100 * rate / other, f"{rate:.5g} of {other:.5g} tok/s, the first run took {first:.2f} s")

    def _next(self) -> int:
        self._seed += 1
        return self._seed

    def _warm_up(self) -> None:
        if not self._warm:
            timed(self._llm, self._setting.mixed(self._sizes.warm_count, seed=7))
            self._warm = True


class OfflineSmall(Offline):
    """Qwen3-0.6B: T1, T5, T9, and what the host does."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, setting.small)

    @property
    def jobs(self) -> dict[str, Callable[[Report], None]]:
        return {
            "T1": lambda report: self.mixed(report, "T1"),
            "T5": lambda report: self.decode(report, ("T5", "T5.16", "T5.64")),
            "T9": lambda report: self.first(report, ("T9", "T9.1024", "T9.8192")),
            "T14": self.host,
            "G1": lambda report: self.schemas(report, "G1", "G1.free"),
            "G2": self.ways,
        }

    def ways(self, report: Report) -> None:
        """Streams that are sampled in other ways than greedily, beside greedy ones, by turns."""
        sizes = self._sizes
        for size, tail in ((sizes.decode_batches[-1], ""), (sizes.decode_batches[0], "-1")):
            fields = {"": {"temperature": 0.0}, **{way: asked for way, (_, asked) in WAYS.items()}}
            rates: dict[str, list[float]] = {way: [] for way in fields}
            for turn in range(1 + sizes.decode_rounds):
                for way, found in rates.items():
                    found.append(rate(self._llm, size, sizes, self._next(), fields[way]))
                    if turn == 0:
                        found.clear()
            greedy = statistics.median(rates.pop(""))
            for way, found in rates.items():
                mine = statistics.median(found)
                report(f"G2.{way}{tail}", 100 * mine / greedy, f"{mine:.5g} of {greedy:.5g} tok/s")

    def host(self, report: Report) -> None:
        """The host's time a step, then the GPU's share of busy time with a profiler on."""
        sizes = self._sizes
        self._warm_up()
        load = even(sizes.count, sizes.host_in, sizes.host_out, seed=self._next())
        took = host_time(self._llm._client.engine.core.executor, lambda: timed(self._llm, load), sizes.count)
        parts = ", ".join(f"{1e6 * getattr(took, part):.0f} to {part}" for part in ("forward", "sample", "read"))
        note = f"median of {took.steps} steps, all but waiting for the device; {1e6 * took.mean:.0f} on average"
        report("T14", 1e6 * took.whole, f"{note}; {parts}")
        if self._setting.device == "cuda":
            load = even(sizes.count, sizes.host_in, sizes.host_out // 2, seed=self._next())
            report("T14.busy", 100 * busy_share(lambda: timed(self._llm, load), self._setting.folder))


class OfflineLarge(Offline):
    """Qwen3-8B: T3, T6, T9."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, setting.large)

    @property
    def jobs(self) -> dict[str, Callable[[Report], None]]:
        return {
            "T3": lambda report: self.mixed(report, "T3"),
            "T6": lambda report: self.decode(report, ("T6", "T6.16", "T6.64")),
            "T9.8b": lambda report: self.first(report, ("T9.8b-128", "T9.8b-1024", "T9.8b-8192")),
            "G1.8b": lambda report: self.schemas(report, "G1.8b", "G1.8b-free"),
        }


class OfflineMemory(Offline):
    """Qwen3-0.6B on nearly all of the device's memory: T29."""

    def __init__(self, setting: Setting) -> None:
        more = {} if setting.device == "cpu" else {"gpu_memory_utilization": setting.utilization}
        super().__init__(setting, setting.small, **more)

    @property
    def jobs(self) -> dict[str, Callable[[Report], None]]:
        return {"T29": self.memory}

    def memory(self, report: Report) -> None:
        """Bytes of KV cache over bytes that the weights leave of the device, once requests have run on it."""
        from octavo.engine.sizing import DTYPE_BYTES, one_block_bytes
        from octavo.platform.registry import select

        self._warm_up()
        engine = self._llm._client.engine
        arch, settled = engine.files.arch, engine.resolved
        _, total = select(settled.device).memory()
        weights = arch.num_parameters() * DTYPE_BYTES[settled.dtype]
        cache = engine.ready.num_blocks * one_block_bytes(arch.kv_specs(), settled.block_size, settled.dtype)
        note = f"{cache / 1e9:.1f} of {(total - weights) / 1e9:.1f} GB"
        note += "".join(f", {name} {value:g}" for name, value in self._options.items())
        report("T29", 100 * cache / (total - weights), note)
