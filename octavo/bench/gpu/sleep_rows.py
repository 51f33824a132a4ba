"""Sleep and wake: what the driver says came back, how long each way takes, and that the tokens stay the same."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from octavo.bench.gpu.child import Report
from octavo.bench.gpu.offline_rows import Offline
from octavo.bench.gpu.setting import Setting

PROMPTS = [list(range(20 + 7 * index, 140 + 7 * index)) for index in range(8)]
PROBE_BYTES = 1 << 30
ROUNDS = 3
NAP_S = 1.5  # the driver clears freed memory for a while; who wakes at once waits for it


class _Sleep(Offline):
    """A model, put to sleep and woken again."""

    def used(self) -> int:
        """Bytes that are taken: of the GPU as its driver has it, or of this process."""
        if self._setting.device == "cuda":
            torch.cuda.synchronize()
            free, total = torch.cuda.mem_get_info()
            return int(total - free)
        import psutil

        return int(psutil.Process().memory_info().rss)

    def tokens(self) -> list[list[int]]:
        """What greedy requests get now."""
        from octavo import SamplingParams

        greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
        results = self._llm.generate([{"prompt_token_ids": one} for one in PROMPTS], greedy, use_tqdm=False)
        return [result.outputs[0].token_ids for result in results]

    def round(self, level: int, before: list[list[int]]) -> "_Round":
        """Once asleep, for a nap, and awake. Raises RuntimeError if the tokens are not those of `before`."""
        used = self.used()
        asleep = clocked(lambda: self._llm.sleep(level))
        left = self.used()
        if self._setting.device == "cuda":
            time.sleep(NAP_S)
        weights = clocked(lambda: self._llm.wake_up(["weights"]))
        cache = clocked(lambda: self._llm.wake_up(["kv_cache"]))
        back = self.used()
        first = clocked(lambda: self.same(before, f"after level {level}"))
        return _Round(used, left, back, asleep, weights, cache, first)

    def same(self, before: list[list[int]], when: str) -> None:
        """Raises RuntimeError if greedy tokens are not those of `before`."""
        if self.tokens() != before:
            raise RuntimeError(f"greedy tokens differ {when}")

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights on the device."""
        engine = self._llm._client.engine
        return int(engine.files.arch.num_parameters() * torch.finfo(getattr(torch, engine.resolved.dtype)).bits // 8)


@dataclass(frozen=True, slots=True)
class _Round:
    """Bytes used before, asleep and awake again; seconds of each way, and of the first requests then."""

    used: int
    left: int
    back: int
    asleep: float
    weights: float  # bringing the weights back
    cache: float  # and the KV cache
    first: float

    @property
    def awake(self) -> float:
        """Seconds of waking, all of it."""
        return self.weights + self.cache

    @property
    def note(self) -> str:
        return f"{self.used / 1e9:.2f} GB used, {self.left / 1e9:.2f} asleep, {self.back / 1e9:.2f} awake again"


class SleepSmall(_Sleep):
    """Qwen3-0.6B whose weights lie in a file: S1, level 2."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, setting.small, load_format="auto")

    @property
    def jobs(self) -> dict[str, Callable[[Report], None]]:
        return {"S1": self.drop}

    def folder(self) -> Path:
        folder = super().folder()
        write_weights(folder)
        return folder

    def drop(self, report: Report) -> None:
        """Falls asleep at level 2 a few times; the best of each time, since the machine is shared."""
        before = self.tokens()
        self.same(before, "from one run to the next")  # what follows would mean nothing
        usual = clocked(self.tokens)
        rounds = [self.round(2, before) for _ in range(ROUNDS)]
        last = rounds[-1]
        report("S1", 100 * (last.used - last.left) / max(1, last.used), last.note)
        report("S1.asleep", 1e3 * min(one.asleep for one in rounds))
        best = min(rounds, key=lambda one: one.awake)
        rate = self.weight_bytes / best.weights
        report("S1.awake", 1e3 * best.awake, f"{rate / 1e9:.1f} GB/s of weights, KV cache {1e3 * best.cache:.1f} ms")
        report("S1.first", min(one.first for one in rounds) / max(1e-9, usual))


class SleepLarge(_Sleep):
    """Qwen3-8B: S2, level 1."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, setting.large)

    @property
    def jobs(self) -> dict[str, Callable[[Report], None]]:
        return {"S2": self.keep}

    def keep(self, report: Report) -> None:
        """Falls asleep at level 1, and wakes over the bus."""
        before = self.tokens()
        rate = self.bus()
        rounds = [self.round(1, before) for _ in range(ROUNDS)]
        best = min(rounds, key=lambda one: one.awake)
        reached = self.weight_bytes / best.weights
        if rate:
            report("S2.bus", rate / 1e9)
            report("S2", 100 * reached / rate, f"after {NAP_S:g} s asleep; {rounds[-1].note}")
        report("S2.awake", 1e3 * best.awake, f"{reached / 1e9:.1f} GB/s of weights, KV cache {1e3 * best.cache:.1f} ms")
        report("S2.asleep", 1e3 * min(one.asleep for one in rounds))

    def bus(self) -> float:
        """Bytes a second from pinned host memory to the device; 0 where there is no bus."""
        if self._setting.device != "cuda":
            return 0.0
        nbytes = min(PROBE_BYTES, torch.cuda.mem_get_info()[0] // 2)
        host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")

        def send() -> None:
            device.copy_(host, non_blocking=True)
            torch.cuda.synchronize()

        send()
        rate = nbytes / min(clocked(send) for _ in range(ROUNDS))
        torch.cuda.empty_cache()
        return rate


def clocked(work: Callable[[], Any]) -> float:
    """Seconds of `work`."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def write_weights(folder: Path) -> None:
    """A safetensors file of random weights for the config in `folder`; made once."""
    path = folder / "model.safetensors"
    if path.exists():
        return
    from safetensors.torch import save_file

    from octavo.base.config import ModelConfig
    from octavo.weights.dummy import DummySource
    from octavo.weights.facts import read_model

    arch = read_model(ModelConfig(model=str(folder), load_format="dummy")).arch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, arch.dtype)
    source = DummySource(arch, device=device, progress=False)
    save_file({name: entry.load(dtype).cpu() for name, entry in source.tensors}, path)
