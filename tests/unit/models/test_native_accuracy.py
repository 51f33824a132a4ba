"""A real model's log-probabilities beside the dequantized reference's. Slow, and only where a file is at hand:
``OCTAVO_TEST_GGUF``, or the demo model in the cache folder."""

import os
import sys
from pathlib import Path

import pytest

from octavo.base.config import EngineConfig, ModelConfig
from octavo.kernels.cpu.loader import native
from octavo.text.tokenizer import load_tokenizer
from octavo.weights.demo_models import QWEN
from octavo.weights.facts import read_model
from octavo.weights.fetch import cache_folder

ROOT = Path(__file__).parents[3]
MODEL = Path(os.environ.get("OCTAVO_TEST_GGUF") or cache_folder() / QWEN.file)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(native() is None, reason="the CPU kernels are not built")
@pytest.mark.skipif(not MODEL.is_file(), reason="no model file at hand")
def test_log_probabilities_and_perplexity(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks" / "cpu_engines"), *sys.path])
    from accuracy_engine import fixed_text

    from octavo.testing.accuracy import compare

    files = read_model(ModelConfig(model=str(MODEL)))
    tokens = load_tokenizer(files).encode(fixed_text())[:2000]
    assert len(tokens) == 2000
    found = compare(files, tokens, EngineConfig())
    print(found)
    assert found.of_text < 0.05
    assert found.of_likeliest < 0.05
    assert abs(found.perplexity_change) < 0.005
