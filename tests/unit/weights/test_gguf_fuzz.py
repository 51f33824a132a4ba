"""Broken GGUF models, taken all the way: header, architecture, tokenizer, weights. Each is loaded or refused in one
line, soon, and without much memory."""

import random
import resource
import struct
import time
from pathlib import Path

import pytest
import torch
from weights_support import tiny_model, write_gguf

from octavo.base.config import ModelConfig
from octavo.base.errors import ConfigError, ModelFileError
from octavo.kernels.cpu.loader import native
from octavo.kernels.ops import select
from octavo.models.decoder import build
from octavo.nn.quant.native import Native
from octavo.text.tokenizer import load_tokenizer
from octavo.weights.facts import read_model
from octavo.weights.gguf import read_gguf
from octavo.weights.load import load_weights
from octavo.weights.source import open_source

CPU = torch.device("cpu")
TRIALS = 600
SECONDS = 20.0  # for one file, on a busy machine
GROWTH_KB = 1 << 20
NUMBERS = (0, 1, 2, 3, 5, 31, 33, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
LONGS = (*NUMBERS, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "good.gguf"
    write_gguf(path, "qwen2", tiny_model("qwen2"))
    return path.read_bytes()


def take_in(path: Path) -> None:
    """What a start does with a file before the first step."""
    files = read_model(ModelConfig(model=str(path)))
    method = Native(native().Machine(1, False, "")) if native() is not None else None  # type: ignore[union-attr]
    model = build(files.arch, select(CPU, "reference"), torch.float32, CPU, max_position=64, method=method)
    load_weights(model, open_source(files, progress=False), path=str(path))
    load_tokenizer(files).encode("a few words")


def outcome(path: Path, data: bytes) -> str:
    """'' when it loads, the line that refuses it otherwise."""
    path.write_bytes(data)
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = ""
    try:
        take_in(path)
    except (ModelFileError, ConfigError) as error:
        line = str(error)
        assert line
        assert "\n" not in line
        assert len(line) < 1000
    assert time.monotonic() - begin < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KB
    return line


def test_numbers_of_the_header_replaced(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(good)
    start = min(tensor.offset for tensor in read_gguf(path).tensors.values())
    rng = random.Random(7)
    refused = 0
    for trial in range(TRIALS):
        broken = bytearray(good)
        for _ in range(1 + trial % 3):
            if rng.random() < 0.5:
                struct.pack_into("<I", broken, rng.randrange(start - 4), rng.choice(NUMBERS))
            else:
                struct.pack_into("<Q", broken, rng.randrange(start - 8), rng.choice(LONGS))
        refused += bool(outcome(path, bytes(broken)))
    assert TRIALS // 4 < refused <= TRIALS


def test_pieces_moved_and_cut(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    rng = random.Random(8)
    for _ in range(TRIALS // 5):
        begin, length, to = rng.randrange(len(good)), rng.randrange(1, 400), rng.randrange(len(good))
        piece = good[begin : begin + length]
        outcome(path, good[:to] + piece + good[to + rng.choice((0, length)) :])


@pytest.mark.parametrize("key", ["block_count", "context_length", "embedding_length", "feed_forward_length"])
def test_each_size_of_the_architecture(key: str, good: bytes, tmp_path: Path) -> None:
    name = f"qwen2.{key}".encode()
    at = good.index(name) + len(name) + 4  # behind the type of its value
    for value in (0, 1, 7, 1 << 20, (1 << 31) - 1, (1 << 32) - 1):
        broken = bytearray(good)
        struct.pack_into("<I", broken, at, value)
        line = outcome(tmp_path / "broken.gguf", bytes(broken))
        assert line or key == "context_length" or value == 1, (key, value)


def test_the_good_file_loads(good: bytes, tmp_path: Path) -> None:
    assert not outcome(tmp_path / "good.gguf", good)
