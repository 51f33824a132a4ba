"""What is measured: the rows, where each is measured and for how long, and the limit each figure is held against.

Limits are those of one H200: what its memory (4.2 TB/s of copy) and arithmetic (790 TFLOP/s of bf16) allow. The
machine's own `copy` and `gemm` stand in the first rows of every result, so that the limits can be judged.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.bench.gpu.ways import WAYS

LIMITS_OF = "nvidia-h200"
"""The machine whose limits these are; on others a figure has none."""


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work that fails or passes alone. It may bring several points, all named after its row."""

    id: str
    stage: str  # a process; see STAGES
    cap_s: float

    @property
    def row(self) -> str:
        """``"T9.8b"`` belongs to row T9."""
        return self.id.partition(".")[0]


JOBS = (
    Job("probe", "kernels", 25),
    Job("T8", "kernels", 45),
    Job("T14.plan", "kernels", 20),
    Job("T13.api", "kernels", 20),
    Job("T17", "http-small", 180),
    Job("T11", "http-small", 20),
    Job("T12", "http-small", 25),
    Job("T13", "http-small", 45),
    Job("T15", "http-small", 45),
    Job("T1", "offline-small", 75),
    Job("T5", "offline-small", 45),
    Job("T9", "offline-small", 20),
    Job("T14", "offline-small", 45),
    Job("G1", "offline-small", 45),
    Job("G2", "offline-small", 30),
    Job("T3", "offline-large", 75),
    Job("T6", "offline-large", 45),
    Job("T9.8b", "offline-large", 25),
    Job("G1.8b", "offline-large", 45),
    Job("T11.8b", "http-large", 90),
    Job("T29", "memory", 30),
    Job("S1", "sleep-small", 30),
    Job("S2", "sleep-large", 45),
    Job("P1", "peer", 75),
)
"""In the order of running."""

STAGES = {
    "kernels": "octavo.bench.gpu.kernels:KernelStage",
    "http-small": "octavo.bench.gpu.http_rows:HttpSmall",
    "http-large": "octavo.bench.gpu.http_rows:HttpLarge",
    "offline-small": "octavo.bench.gpu.offline_rows:OfflineSmall",
    "offline-large": "octavo.bench.gpu.offline_rows:OfflineLarge",
    "memory": "octavo.bench.gpu.offline_rows:OfflineMemory",
    "sleep-small": "octavo.bench.gpu.sleep_rows:SleepSmall",
    "sleep-large": "octavo.bench.gpu.sleep_rows:SleepLarge",
    "peer": "octavo.bench.gpu.peer:PeerStage",
}
"""Each stage is one process, so that one model at a time is on the GPU and a broken one takes nothing else along."""


@dataclass(frozen=True, slots=True)
class Point:
    """One figure. `less`: smaller is better, and the fraction is limit over value."""

    what: str
    unit: str
    limit: float | None = None
    less: bool = False


_MIX = "256 requests, in and out uniform 100..1024, offline"
_DECODE = "decode alone, 128 in, 256 out"
_FIRST = "time to first token"
_SCHEMAS = "64 streams, a schema of its own each, rate over that of free ones of the same lengths"
POINTS: dict[str, Point] = {
    "copy": Point("copy inside the GPU, read and write", "GB/s"),
    "gemm": Point("bf16 matrix product of 8192", "TFLOP/s"),
    "T1": Point(f"Qwen3-0.6B, {_MIX}", "tok/s", 36_200),
    "T3": Point(f"Qwen3-8B, {_MIX}", "tok/s", 13_000),
    "T5": Point(f"Qwen3-0.6B, {_DECODE}, batch 1", "tok/s", 3_480),
    "T5.16": Point(f"Qwen3-0.6B, {_DECODE}, batch 16", "tok/s", 40_000),
    "T5.64": Point(f"Qwen3-0.6B, {_DECODE}, batch 64", "tok/s", 87_000),
    "T6": Point(f"Qwen3-8B, {_DECODE}, batch 1", "tok/s", 280),
    "T6.16": Point(f"Qwen3-8B, {_DECODE}, batch 16", "tok/s", 4_300),
    "T6.64": Point(f"Qwen3-8B, {_DECODE}, batch 64", "tok/s", 15_400),
    "T8": Point("decode attention alone, 256 rows of 1k tokens", "GB/s", 4_200),
    "T8.mixed": Point("decode attention alone, 256 rows of 100..8k tokens", "GB/s", 4_200),
    "T9": Point(f"Qwen3-0.6B, offline, {_FIRST}, 128 in", "ms", 0.3, less=True),
    "T9.1024": Point(f"Qwen3-0.6B, offline, {_FIRST}, 1k in", "ms", 1.5, less=True),
    "T9.8192": Point(f"Qwen3-0.6B, offline, {_FIRST}, 8k in", "ms", 19.5, less=True),
    "T9.8b-128": Point(f"Qwen3-8B, offline, {_FIRST}, 128 in", "ms", 3.7, less=True),
    "T9.8b-1024": Point(f"Qwen3-8B, offline, {_FIRST}, 1k in", "ms", 19, less=True),
    "T9.8b-8192": Point(f"Qwen3-8B, offline, {_FIRST}, 8k in", "ms", 171, less=True),
    "T11": Point(f"Qwen3-0.6B, HTTP, idle, {_FIRST}, 128 in", "ms", 0.5, less=True),
    "T11.8b-1024": Point(f"Qwen3-8B, HTTP, idle, {_FIRST}, 1k in", "ms", 19, less=True),
    "T12": Point(f"Qwen3-0.6B, HTTP, 8k of the prompt cached, {_FIRST}", "ms", 1, less=True),
    "T12.16384": Point(f"Qwen3-0.6B, HTTP, 16k of the prompt cached, {_FIRST}", "ms", 4, less=True),
    "T13": Point("Qwen3-0.6B, HTTP, 512 in, 256 out, 64 at once, output", "tok/s"),
    "T13.ttft": Point(f"Qwen3-0.6B, HTTP, 64 at once, median {_FIRST}", "ms", less=True),
    "T13.itl": Point("Qwen3-0.6B, HTTP, 64 at once, between tokens, p99", "ms", less=True),
    "T13.client": Point("the load generator itself, 64 streams", "% of a core", less=True),
    "T13.api": Point("the API process, 64 streams, CPU time a token, no engine and no socket", "us", less=True),
    "T14": Point("Qwen3-0.6B, 256 running, a decode step's time on the host", "us", 50, less=True),
    "T14.plan": Point(
        "256 running, planning and update alone, no device (mean, rows at all places of their blocks)", "us", less=True
    ),
    "T14.busy": Point("Qwen3-0.6B, 256 running, GPU busy (kernels over time, with a profiler on)", "%", 100),
    "T15": Point(
        "Qwen3-0.6B, 32 streams, p99 between tokens while a 32k prompt is computed, over idle", "x", 1, less=True
    ),
    "T15.idle": Point("Qwen3-0.6B, 32 streams, between tokens, p99, idle", "ms", less=True),
    "T15.loaded": Point("Qwen3-0.6B, 32 streams, between tokens, p99, while a 32k prompt is computed", "ms", less=True),
    "T15.ttft": Point(f"Qwen3-0.6B, 32k prompt beside 32 streams, median {_FIRST}", "ms", less=True),
    "T17": Point("Qwen3-0.6B, process start to first HTTP token, empty kernel cache", "s", 2, less=True),
    "T17.warm": Point("Qwen3-0.6B, process start to first HTTP token, warm kernel cache", "s", 2, less=True),
    "T17.settled": Point("Qwen3-0.6B, process start to evenly fast answers, warm kernel cache", "s", less=True),
    "T29": Point("Qwen3-0.6B, KV cache over the memory left after weights", "%", 100),
    "S1": Point("Qwen3-0.6B, level 2: GPU memory that the driver has back, of what was used", "%", 100),
    "S1.asleep": Point("Qwen3-0.6B, falling asleep at level 2", "ms", 50, less=True),
    "S1.awake": Point("Qwen3-0.6B, waking from level 2, the file in the page cache", "ms", less=True),
    "S1.first": Point("Qwen3-0.6B, first requests after waking, over the usual time", "x", 1, less=True),
    "S2": Point("Qwen3-8B, level 1: rate of waking over the bus's own", "%", 100),
    "S2.bus": Point("copy from pinned host memory to the GPU", "GB/s"),
    "S2.awake": Point("Qwen3-8B, waking from level 1", "ms", less=True),
    "S2.asleep": Point("Qwen3-8B, falling asleep at level 1", "ms", less=True),
    "G1": Point(f"Qwen3-0.6B, {_SCHEMAS}", "%", 90),
    "G1.free": Point("Qwen3-0.6B, 64 free streams of the same lengths, drawn at temperature 1", "tok/s"),
    "G1.8b": Point(f"Qwen3-8B, {_SCHEMAS}", "%", 97),
    "G1.8b-free": Point("Qwen3-8B, 64 free streams of the same lengths, drawn at temperature 1", "tok/s"),
    **{
        f"G2.{way}{tail}": Point(f"Qwen3-0.6B, {streams}, {how}: rate over that of plain greedy ones", "%", 100)
        for way, (how, _) in WAYS.items()
        for tail, streams in (("", "64 streams"), ("-1", "1 stream"))
    },
    "P1": Point("transformers continuous batching, Qwen3-0.6B, requests as in T1, this run", "tok/s"),
}


AIMS: dict[str, float] = {
    "T1": 29_000,
    "T3": 10_500,
    "T5": 1_500,
    "T5.16": 20_000,
    "T5.64": 45_000,
    "T6": 250,
    "T6.16": 3_800,
    "T6.64": 12_800,
    "T8": 0.9 * 4_200,
    "T8.mixed": 0.85 * 4_200,
    "T9": 2.5,
    "T9.1024": 4,
    "T9.8192": 27,
    "T9.8b-128": 6,
    "T9.8b-1024": 24,
    "T9.8b-8192": 197,
    "T11": 4,
    "T11.8b-1024": 25,
    "T12": 7,
    "T12.16384": 12,
    "T13": 22_000,
    "T13.ttft": 80,
    "T13.itl": 8,
    "T14": 300,
    "T14.busy": 97,
    "T15": 1.6,
    "T17": 8,
    "T17.warm": 4,
    "T29": 96,
    "G1": 90,
    "G1.8b": 97,
    "S1": 95,
    "S1.asleep": 50,
    "S2": 85,
}
"""What this project set out to reach on that machine. A limit is what physics allows, an aim what hard work should."""


def chosen(only: Iterable[str]) -> list[Job]:
    """Jobs of the rows asked for (``T9`` or ``T9.8b``); all for none. Raises ValueError for an unknown row."""
    wanted = set(only)
    unknown = wanted - {name for job in JOBS for name in (job.id, job.row)}
    if unknown:
        raise ValueError(
            f"no row {', '.join(sorted(unknown))}; rows are {', '.join(dict.fromkeys(j.row for j in JOBS))}"
        )
    return [job for job in JOBS if not wanted or job.id in wanted or job.row in wanted]
