"""Driving the offline API for a measurement: the engine in this process, fixed lengths, greedy."""

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from octavo.base.args import changed
from octavo.base.config import EngineConfig
from octavo.base.params import SamplingParams
from octavo.bench.data import Load
from octavo.bench.standin import write_tokenizer

POLL_S = 0.02


@contextmanager
def open_llm(engine: EngineConfig) -> Iterator[Any]:
    """An `octavo.LLM` for the config, closed at the end. Dummy weights without a tokenizer get a stand-in."""
    from octavo.llm import LLM
    from octavo.weights.facts import read_model

    keywords = changed(engine)
    with tempfile.TemporaryDirectory() as folder:
        if engine.model.load_format == "dummy" and engine.model.tokenizer is None:
            files = read_model(engine.model)
            if files.tokenizer_dir is None:
                keywords["tokenizer"] = str(write_tokenizer(Path(folder), files.arch.vocab_size))
        with LLM(**keywords) as llm:
            yield llm


def facts_of(llm: Any, engine: EngineConfig) -> dict[str, Any]:
    """What a report says of the engine that was measured."""
    settled = llm.resolved
    return {
        "model": Path(engine.model.model).name,
        "device": settled.device,
        "dtype": settled.dtype,
        "threads": settled.threads,
        "max_num_seqs": settled.max_num_seqs,
        "max_num_batched_tokens": settled.max_num_batched_tokens,
    }


GREEDY = SamplingParams(temperature=0.0)


def timed(llm: Any, load: Load, way: SamplingParams = GREEDY) -> float:
    """Seconds to run all of `load` to its exact lengths, sampled in a `way`."""
    prompts = [{"prompt_token_ids": prompt} for prompt in load.prompts]
    params = [structs.replace(way, max_tokens=length, ignore_eos=True) for length in load.output_lens]
    start = time.perf_counter()
    results = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    made = sum(len(result.outputs[0].token_ids) for result in results)
    if made != load.total_out:
        raise RuntimeError(f"asked for {load.total_out} tokens, got {made}")
    return seconds


@dataclass(slots=True)
class Gauges:
    """Readings of the engine's gauges over a run, taken while requests were running."""

    waste: list[float] = field(default_factory=list)
    usage: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)


class Watch:
    """Reads the engine's gauges from a thread for the length of the block."""

    def __init__(self, llm: Any) -> None:
        self.gauges = Gauges()
        self._llm = llm
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Gauges:
        self._thread.start()
        return self.gauges

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _poll(self) -> None:
        seen = -1
        while not self._stop.wait(POLL_S):
            stats = self._llm.stats
            # One reading a step, and only of steps that had work: an idle pool wastes nothing and says nothing.
            if stats.running and stats.steps != seen:
                seen = stats.steps
                self.gauges.waste.append(stats.kv_waste)
                self.gauges.usage.append(stats.kv_usage)
                self.gauges.running.append(stats.running)
