"""A peer in the same run: transformers' continuous batching over the same shape and requests drawn alike."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

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
    most = None if attention != "sdpa" else 16
    blocks: dict[str, Any] = {} if setting.device == "cuda" else {"num_blocks": 16, "max_batch_tokens": 64}
    settings = ContinuousBatchingConfig(max_requests_per_batch=most, allow_block_sharing=False, **blocks)
    make_generation: Any = GenerationConfig
    generation = make_generation(max_new_tokens=max(load.output_lens), do_sample=False, eos_token_id=-1)
    counts: dict[str, int] = {}
    ended: set[str] = set()
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=settings, block=True, timeout=5, warmup=False
    ) as manager:
        start = time.perf_counter()
        for index, (prompt, length) in enumerate(zip(load.prompts, load.output_lens)):
            manager.add_request(prompt, request_id=f"r{index}", max_new_tokens=length, streaming=True)
        while len(ended) < len(load) and time.perf_counter() - start < setting.sizes.peer_s:
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
    made = sum(counts.values())
    if not made:
        raise RuntimeError(f"no token came within {took:.0f} s")
    return made, took, len(ended) == len(load)
