"""A peer in the same run: transformers' continuous batching over the same shape and requests drawn alike."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from octavo.bench.data import Load
from octavo.bench.gpu.child import Report
from octavo.bench.gpu.setting import Setting, model_config

RESULT_WAIT_S = 0.5


class PeerStage:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._model: Any = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        yield

    @property
    def jobs(self) -> dict[str, Callable[[Report], None]]:
        return {"P1": self.batching}

    def batching(self, report: Report) -> None:
        """Tokens made by the end, or by the time limit, over the time."""
        import transformers

        attention = "flash_attention_3" if find_spec("flash_attn_interface") else "sdpa"
        values = model_config(self._setting.small)
        config = transformers.Qwen3Config(**{key: value for key, value in values.items() if key != "architectures"})
        config._attn_implementation = f"paged|{attention}"
        from_config: Any = transformers.AutoModelForCausalLM.from_config
        dtype = torch.bfloat16 if self._setting.device == "cuda" else torch.float32
        with torch.device(self._setting.device):
            model = from_config(config, dtype=dtype).eval()
        made, took, whole = _run(model, self._setting, attention)
        sizes = self._setting.sizes
        part = "" if whole else f", stopped after {sizes.peer_s:g} s"
        report("P1", made / took, f"{sizes.peer_count} of them{part}; attention {attention}")


def _run(model: Any, setting: Setting, attention: str) -> tuple[int, float, bool]:
    """Tokens made, seconds, and whether all requests ended."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    load = setting.mixed(setting.sizes.peer_count)
    # Without flash attention each step computes every request against the cache of all, so fewer at once are faster.
    limits: dict[str, Any] = {}
    if attention == "sdpa":
        limits = {"max_requests_per_batch": 16, "num_blocks": 160, "max_batch_tokens": 2048}
    if setting.device == "cpu":
        limits |= {"num_blocks": 16, "max_batch_tokens": 64}
    settings = ContinuousBatchingConfig(allow_block_sharing=False, **limits)
    make_generation: Any = GenerationConfig
    generation = make_generation(max_new_tokens=max(load.output_lens), do_sample=False, eos_token_id=-1)
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=settings, block=True, timeout=5, warmup=False
    ) as manager:
        _drive(manager, Load(load.prompts[:2], [4, 4]), setting.sizes.peer_s)  # a warm-up
        return _drive(manager, load, setting.sizes.peer_s)


def _drive(manager: Any, load: Load, limit_s: float) -> tuple[int, float, bool]:
    """Send all of `load` and read until all have ended or the time has."""
    counts: dict[str, int] = {}
    ended: set[str] = set()
    start = time.perf_counter()
    for prompt, length in zip(load.prompts, load.output_lens):
        counts[manager.add_request(prompt, max_new_tokens=length, streaming=True)] = 0
    while len(ended) < len(load) and time.perf_counter() - start < limit_s:
        output = manager.get_result(timeout=RESULT_WAIT_S)
        if output is None:
            if not manager.is_running():
                raise RuntimeError("transformers' generation thread ended")
            continue
        if output.error:
            raise RuntimeError(f"transformers failed: {output.error}")
        counts[output.request_id] = len(output.generated_tokens)
        if output.is_finished():
            ended.add(output.request_id)
    took = time.perf_counter() - start
    if not sum(counts.values()):
        raise RuntimeError(f"no token came within {took:.0f} s")
    return sum(counts.values()), took, len(ended) == len(load)
