"""Log-probabilities and perplexity of the native path beside the dequantized reference's: a tiny random model in every
format, and real ones (slow, only where files are at hand: ``OCTAVO_TEST_GGUF``, several with ``:`` between, or the demo
model in the cache folder)."""

import os
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from octavo.base.config import DeviceConfig, EngineConfig, ModelConfig
from octavo.base.places import cache_folder
from octavo.kernels.cpu.loader import native
from octavo.kernels.cpu.pack import BLOCK_TYPES
from octavo.testing.accuracy import compare
from octavo.text.tokenizer import load_tokenizer
from octavo.weights.demo_models import QWEN
from octavo.weights.facts import read_model
from octavo.weights.gguf_dequant import dequantise
from octavo.weights.gguf_types import BLOCK_TYPES as BLOCKS

ROOT = Path(__file__).parents[3]
MODELS = os.environ.get("OCTAVO_TEST_GGUF", str(cache_folder() / "models" / QWEN.file)).split(os.pathsep)
BOTH = [EngineConfig(device=DeviceConfig(cpu_activations=bits)) for bits in ("int8", "int16")]

pytestmark = pytest.mark.skipif(native() is None, reason="the CPU kernels are not built")

LAYERS, HIDDEN, WIDE, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 2, 256, 512, 256, 4, 2, 64
SHAPES = {
    "attn_q": (HEADS * HEAD_DIM, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_DIM),
    "ffn_gate": (WIDE, HIDDEN),
    "ffn_up": (WIDE, HIDDEN),
    "ffn_down": (HIDDEN, WIDE),
}
SCALE_AT = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}  # bytes; elsewhere a block begins with its fp16 scale
MINIMUM = {"Q2_K": 1.5, "Q4_1": -7.5, "Q5_1": -15.5, "Q4_K": 7.5, "Q5_K": 15.5}
"""What follows the scale, over it, so that values lie round zero."""


def random_blocks(name: str, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks of random codes ``[rows, row bytes]`` whose values have the spread of a trained matrix."""
    block, at = BLOCKS[BLOCK_TYPES[name]], SCALE_AT.get(name, 0)
    data = rng.integers(0, 256, (rows, columns // block.values, block.size), dtype=np.uint8)

    def scale(size: float) -> None:
        halves = np.array([size, size * MINIMUM[name]] if name in MINIMUM else [size], np.float16).view(np.uint8)
        data[:, :, at : at + len(halves)] = halves

    scale(0.01)
    values = dequantise(torch.from_numpy(data.reshape(rows, -1)), BLOCK_TYPES[name], torch.float32)
    scale(0.01 / columns**0.5 / float(values.std()))
    return data.reshape(rows, -1)


def write_model(path: Path, name: str) -> None:
    """A Qwen2 of two layers whose matrices are all in one format."""
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(LAYERS)
    writer.add_context_length(1024)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{index}" for index in range(VOCAB)])
    raw = gguf.GGMLQuantizationType[name]
    for layer in range(LAYERS):
        for part, shape in SHAPES.items():
            writer.add_tensor(f"blk.{layer}.{part}.weight", random_blocks(name, *shape, rng), raw_dtype=raw)
        for part in ("attn_q", "attn_k", "attn_v"):
            writer.add_tensor(f"blk.{layer}.{part}.bias", rng.normal(0, 0.1, SHAPES[part][0]).astype(np.float32))
        for part in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{part}.weight", rng.normal(1, 0.1, HIDDEN).astype(np.float32))
    writer.add_tensor("output_norm.weight", rng.normal(1, 0.1, HIDDEN).astype(np.float32))
    for part in ("token_embd", "output"):
        writer.add_tensor(f"{part}.weight", random_blocks(name, VOCAB, HIDDEN, rng), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", sorted(BLOCK_TYPES))
def test_every_format_on_a_tiny_model(name, tmp_path):
    write_model(tmp_path / "tiny.gguf", name)
    tokens = np.random.default_rng(1).integers(0, VOCAB, 300).tolist()
    one, two = compare(read_model(ModelConfig(model=str(tmp_path / "tiny.gguf"))), tokens, BOTH)
    print(name, one, two)
    for found in (one, two):
        assert found.reference_perplexity > VOCAB / 2  # nothing was learned
        assert abs(found.perplexity_change) < 0.005
    assert one.largest < 0.2
    assert two.largest < (0.1 if name in ("Q2_K", "Q3_K") else 0.05)  # these two are kept in eight bits


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: Path(model).stem)
def test_log_probabilities_and_perplexity(model, monkeypatch):
    if not Path(model).is_file():
        pytest.skip("no model file at hand")
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks" / "cpu_engines"), *sys.path])
    from accuracy_engine import fixed_text

    files = read_model(ModelConfig(model=model))
    tokens = load_tokenizer(files).encode(fixed_text())[:2000]
    assert len(tokens) == 2000
    one, two = compare(files, tokens, BOTH)
    print(one, two)
    assert abs(one.perplexity_change) < 0.005
    assert abs(two.perplexity_change) < 0.005
    assert two.largest < 0.05
