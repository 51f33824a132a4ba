"""A GGUF model as a folder of safetensors, for engines that do not read GGUF: ``plain_copy.py MODEL.gguf FOLDER``.

Weights are dequantized to bf16; the tokenizer is the one that Octavo makes of the file.
"""

import json
import sys
from pathlib import Path


def main(model: str, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from octavo.base.config import ModelConfig
    from octavo.text.tokenizer import load_tokenizer
    from octavo.weights.facts import read_model
    from octavo.weights.source import open_source

    files = read_model(ModelConfig(model=model))
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: entry.load(torch.bfloat16).contiguous() for name, entry in open_source(files).tensors}
    save_file(tensors, str(folder / "model.safetensors"), {"format": "pt"})
    config = {**files.config, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, default=int), encoding="utf-8")
    tokenizer = load_tokenizer(files)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    named = dict(tokenizer.special_texts)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named}), encoding="utf-8"
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
