"""Every block format against the gguf library, bit for bit, on random blocks."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from octavo.weights.gguf_dequant import HOST_SLAB, dequantise
from octavo.weights.gguf_types import BLOCK_TYPES

HALVES = {  # byte positions of fp16 numbers, which must be finite for a comparison to mean something
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip


def random_rows(qtype: int, rows: int, blocks: int) -> np.ndarray:
    block = BLOCK_TYPES[qtype]
    rng = np.random.default_rng(qtype)
    raw = rng.integers(0, 256, (rows * blocks, block.size), dtype=np.uint8)
    for at in HALVES.get(block.name, ()):
        scale = rng.normal(size=rows * blocks).astype(np.float16)
        raw[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    if block.values == 1:
        numbers = torch.from_numpy(rng.normal(size=(rows * blocks, 1)).astype(np.float32))
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[block.name]
        raw = numbers.to(dtype).view(torch.uint8).numpy()
    return raw.reshape(rows, blocks * block.size)


@pytest.mark.parametrize("qtype", sorted(BLOCK_TYPES), ids=lambda qtype: BLOCK_TYPES[qtype].name)
def test_same_bits_as_the_reference(qtype: int) -> None:
    raw = random_rows(qtype, rows=6, blocks=40)
    expected = dequantize(raw, GGMLQuantizationType(qtype))
    found = dequantise(torch.from_numpy(raw), qtype, torch.float32)
    assert found.shape == expected.shape
    assert np.array_equal(found.numpy().view(np.uint32), expected.view(np.uint32))


def test_more_than_one_slab_and_a_narrower_dtype() -> None:
    threads = torch.get_num_threads()
    blocks = 3 * HOST_SLAB // 32 + 7
    raw = random_rows(8, rows=1, blocks=blocks)
    expected = torch.from_numpy(dequantize(raw, GGMLQuantizationType.Q8_0))
    assert torch.equal(dequantise(torch.from_numpy(raw), 8, torch.float32), expected)
    assert torch.equal(dequantise(torch.from_numpy(raw), 8, torch.bfloat16), expected.bfloat16())
    assert torch.get_num_threads() == threads


def test_block_sizes_agree_with_the_library() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    for qtype, block in BLOCK_TYPES.items():
        assert GGMLQuantizationType(qtype).name == block.name
        assert GGML_QUANT_SIZES[GGMLQuantizationType(qtype)] == (block.values, block.size)
