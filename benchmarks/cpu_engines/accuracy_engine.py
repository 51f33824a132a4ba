"""Octavo's log-probabilities beside the dequantized reference's: ``accuracy_engine.py MODEL.gguf THREADS TOKENS``."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BITS = ("int8", "int16")


def fixed_text() -> str:
    """The licence and the project's first records: prose that does not change."""
    records = sorted((ROOT / "docs" / "adr").glob("000*.md"))
    return "".join(path.read_text("utf-8") for path in [*records, ROOT / "LICENSE"])


def main(model: str, threads: int, count: int) -> None:
    import torch

    from octavo.base.config import DeviceConfig, EngineConfig, ModelConfig
    from octavo.testing.accuracy import compare
    from octavo.text.tokenizer import load_tokenizer
    from octavo.weights.facts import read_model

    torch.set_num_threads(threads)
    files = read_model(ModelConfig(model=model))
    tokens = load_tokenizer(files).encode(fixed_text())[:count]
    configs = [EngineConfig(device=DeviceConfig(cpu_activations=bits)) for bits in BITS]
    figures = {"tokens": len(tokens)}
    for bits, found in zip(BITS, compare(files, tokens, configs, threads)):
        figures |= {
            f"{bits}.largest": found.largest,
            f"{bits}.mean": found.mean,
            f"{bits}.median": found.median,
            f"{bits}.perplexity": abs(found.perplexity_change),
        }
    print("FIGURES " + json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
