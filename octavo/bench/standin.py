"""A tokenizer for a model that has none: random weights need one too, and it should cost what one costs."""

import json
from pathlib import Path
from typing import Any


def write_tokenizer(folder: Path, vocab_size: int) -> Path:
    """A tokenizer.json whose token i reads `` w<i>``; gives the folder back."""
    vocab = {f"\u2581w{token}": token for token in range(vocab_size)}
    spaces = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": spaces,
        "post_processor": None,
        "decoder": spaces,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "\u2581w0"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
