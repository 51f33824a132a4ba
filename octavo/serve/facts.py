"""Facts about this server that do not change while it runs: for ``/metrics`` as labels, for ``/plan`` as JSON."""

import platform
from typing import Any

from octavo import __version__
from octavo.base.config import EngineConfig
from octavo.base.wire import Ready


def cache_facts(config: EngineConfig, ready: Ready) -> dict[str, str]:
    """The KV cache under the names of vLLM's cache_config_info."""
    cache = config.cache
    return {
        "block_size": str(ready.block_size),
        "num_gpu_blocks": str(ready.num_blocks),
        "num_gpu_blocks_override": str(cache.num_gpu_blocks_override),
        "enable_prefix_caching": str(cache.enable_prefix_caching),
        "gpu_memory_utilization": str(cache.gpu_memory_utilization),
        "kv_cache_memory_bytes": str(cache.kv_cache_memory_bytes),
    }


def build_facts() -> dict[str, str]:
    """What runs here."""
    return {"version": __version__, "python": platform.python_version(), "machine": platform.machine()}


def plan_facts(names: list[str], config: EngineConfig, ready: Ready) -> dict[str, Any]:
    """What start-up fitted and why; nothing of paths or keys."""
    return {
        "object": "plan",
        "models": names,
        "version": __version__,
        "max_model_len": ready.max_model_len,
        "vocab_size": ready.vocab_size,
        "block_size": ready.block_size,
        "kv_blocks": ready.num_blocks,
        "kv_tokens": ready.num_blocks * ready.block_size,
        "max_num_seqs": ready.max_num_seqs,
        "max_num_batched_tokens": ready.max_num_batched_tokens,
        "scheduling_policy": config.scheduler.scheduling_policy,
        "enable_prefix_caching": config.cache.enable_prefix_caching,
        "notes": ready.notes,
    }
