"""How a run is scaled: the models, the sizes of the workloads, and how often each is repeated."""

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from octavo.bench.data import VOCAB, Load, mixed
from octavo.bench.standin import write_tokenizer

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "tie_word_embeddings": False,
    },
    # For a dry run on a CPU; no number from it means anything.
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "tie_word_embeddings": True,
        "vocab_size": 10_240,
    },
}
assert all(shape.get("vocab_size", 1 << 17) > VOCAB for shape in SHAPES.values())


class Sizes(Struct, frozen=True, kw_only=True):
    """Lengths in tokens, times in seconds. The defaults are the workloads that engines are compared on."""

    count: int = 256  # requests of the mixed set, and rows of the host rows
    lengths: tuple[int, int] = (100, 1024)  # of its prompts and answers
    warm_count: int = 64
    mixed_runs: int = 3
    decode_batches: tuple[int, int, int] = (1, 16, 64)
    decode_in: int = 128
    decode_out: int = 256
    decode_rounds: int = 3
    held_out: int = 256  # of streams held to schemas, whose shortest texts have some 90 tokens
    first_lens: tuple[int, int, int] = (128, 1024, 8192)
    first_rounds: int = 7
    prefixes: tuple[int, int] = (8192, 16_384)
    idle_requests: int = 20
    settle_pause_s: float = 0.3
    load_requests: int = 256
    load_at_once: int = 64
    load_in: int = 512
    load_out: int = 256
    streams: int = 32
    stream_out: int = 24_000
    stream_settle_s: float = 1.0  # after the streams have begun, before they are looked at
    stream_idle_s: float = 1.5
    long_prompt: int = 32_000
    long_prompts: int = 4
    long_every_s: float = 2.0
    attention_rows: int = 256
    attention_uniform: int = 1024
    attention_mixed: tuple[int, int] = (100, 8192)
    attention_layers: int = 28
    probe_elements: int = 1 << 30
    probe_gemm: int = 8192
    host_in: int = 512
    host_out: int = 160
    peer_count: int = 64
    peer_s: float = 40.0


FULL = Sizes()
QUICK = Sizes(mixed_runs=1, decode_rounds=1, first_rounds=3, idle_requests=8, long_prompts=3, peer_s=15.0)
TINY = Sizes(
    count=4,
    lengths=(5, 20),
    warm_count=2,
    mixed_runs=1,
    decode_batches=(1, 2, 3),
    decode_in=8,
    decode_out=5,
    decode_rounds=1,
    held_out=160,
    first_lens=(8, 16, 32),
    first_rounds=1,
    prefixes=(64, 128),
    idle_requests=2,
    settle_pause_s=0.01,
    load_requests=6,
    load_at_once=3,
    load_in=12,
    load_out=6,
    streams=2,
    stream_out=2000,
    stream_settle_s=0.3,
    stream_idle_s=0.2,
    long_prompt=300,
    long_prompts=2,
    long_every_s=0.1,
    attention_rows=3,
    attention_uniform=20,
    attention_mixed=(5, 60),
    attention_layers=2,
    probe_elements=1 << 16,
    probe_gemm=64,
    host_in=6,
    host_out=12,
    peer_count=2,
    peer_s=8.0,
)


class Setting(Struct, frozen=True, kw_only=True):
    """All that a stage is told."""

    folder: str  # where model folders and kernel caches go
    device: str = "cuda"
    tiny: bool = False
    quick: bool = False
    utilization: float = 0.98  # share of the GPU's memory that T29 asks for

    @property
    def sizes(self) -> Sizes:
        return TINY if self.tiny else QUICK if self.quick else FULL

    @property
    def small(self) -> str:
        return "tiny" if self.tiny else "qwen3-0.6b"

    @property
    def large(self) -> str:
        return "tiny" if self.tiny else "qwen3-8b"

    def engine(self) -> dict[str, Any]:
        """Options of the engine besides the model. On a CPU the dry run keeps small."""
        common = {"load_format": "dummy", "device": self.device}
        if self.device == "cpu":
            return {**common, "threads": 1, "num_gpu_blocks_override": 400, "max_num_batched_tokens": 128}
        return common

    def mixed(self, count: int, seed: int = 0) -> Load:
        """The mixed set, or the first `count` requests drawn like it."""
        low, high = self.sizes.lengths
        return mixed(count, min_in=low, max_in=high, min_out=low, max_out=high, seed=seed)


def kernel_caches(folder: str) -> dict[str, str]:
    """Environment that keeps compiled kernels in a run's own folder, which is empty when the run begins."""
    place = Path(folder) / "kernels"
    return {name: str(place / name.lower()) for name in ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME")}


def model_config(name: str) -> dict[str, Any]:
    """The config.json of a Qwen3 shape."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 40_960,
        "max_window_layers": 0,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "vocab_size": 151_936,
        **SHAPES[name],
    }


def model_folder(name: str, root: str) -> Path:
    """config.json and a stand-in tokenizer of a shape; made once, no weights."""
    folder = Path(root) / name
    if not (folder / "config.json").exists():
        config = model_config(name)
        write_tokenizer(folder, config["vocab_size"])
        (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder
