"""Tokenizers from folders and from GGUF metadata."""

import json
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from text_kit import CORPUS, SPECIAL, TEXTS, gguf_metadata, sentencepiece_metadata, train_backend, write_folder
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from octavo.base.config import ModelConfig
from octavo.base.errors import ConfigError, ModelFileError, OctavoError, UnknownName
from octavo.text.load import load_text
from octavo.text.pretokenizers import PRE_TOKENIZERS
from octavo.text.tokenizer import Tokenizer, from_folder, from_gguf, load_tokenizer


@dataclass
class Files:
    path: Path = Path("model")
    config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)
    tokenizer_dir: Path | None = None
    gguf: Any = None
    chat_template: str | None = None


@dataclass
class Header:
    metadata: dict[str, Any]


def test_gguf_equals_the_folder_it_came_from(backend: Backend, tokenizer: Tokenizer) -> None:
    twin = from_gguf(gguf_metadata(backend))
    assert twin.vocab_size == tokenizer.vocab_size
    assert twin.special_ids == tokenizer.special_ids
    for text in [*TEXTS, *CORPUS]:
        ids = tokenizer.encode(text)
        assert twin.encode(text) == ids
        for skip in (True, False):
            assert twin.decode(ids, skip_special=skip) == backend.decode(ids, skip_special_tokens=skip)


def test_round_trip(tokenizer: Tokenizer) -> None:
    for text in [*TEXTS, *CORPUS]:
        if "\u0301" not in text:  # NFC joins it to its letter
            assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def test_end_tokens(backend: Backend, folder: Path) -> None:
    vocab = backend.get_vocab(True)
    end, turn = vocab["<|endoftext|>"], vocab["<|im_end|>"]
    assert from_gguf(gguf_metadata(backend)).eos_ids == (end, turn)
    assert from_folder(folder).eos_ids == (turn,)
    assert from_folder(folder, {"eos_token_id": [end, turn]}, {"eos_token_id": 7}).eos_ids == (end, turn, 7)
    metadata = {**gguf_metadata(backend), "tokenizer.ggml.eot_token_id": 5}
    assert from_gguf(metadata).eos_ids == (end, 5, turn)


def test_special_tokens_are_added_as_in_transformers(tmp_path: Path) -> None:
    template = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 600)])
    for number, (post, flags) in enumerate(((None, {}), (None, {"add_bos_token": True}), (template, {}))):
        where = tmp_path / str(number)
        where.mkdir()
        backend = train_backend()
        if post is not None:
            backend.post_processor = post
        write_folder(where, backend, tokenizer_class="PreTrainedTokenizerFast", **flags)
        ours, theirs = from_folder(where), AutoTokenizer.from_pretrained(where)
        assert ours.bos_id == theirs.bos_token_id == 600
        for text in TEXTS:
            assert ours.encode(text) == theirs.encode(text)
            assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False)


def test_bytes_and_text_of_one_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🦑")
    assert b"".join(tokenizer.token_bytes(token) for token in ids) == "🦑".encode()
    assert tokenizer.token_text(ids[0]) == "\ufffd"
    assert tokenizer.token_text(tokenizer.eos_ids[0]) == "<|im_end|>"
    assert tokenizer.token_bytes(10**9) == tokenizer.token_bytes(-1) == b""
    assert len(tokenizer.decode([10**12, -5])) == 0


def test_lone_surrogates_are_replaced(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_scores_give_sentencepiece_tokens(prefix: bool) -> None:
    spm, metadata = sentencepiece_metadata(prefix=prefix)
    ours = from_gguf(metadata)
    words = " ".join(CORPUS[:3]).split()
    chooser = random.Random(1)
    texts = [" ".join(chooser.choices(words, k=12)) for _ in range(40)]
    for text in [*TEXTS[1:5], "a   b", "🦑 unseen 龘", *texts]:
        ids = ours.encode(text)
        assert ids == [1, *spm.encode(text)], text
        assert ours.decode(ids) == spm.decode(spm.encode(text)) == text
    assert ours.encode("x<mark>y")[2:-1].count(spm.piece_to_id("<mark>")) == 1


def test_sentencepiece_flags() -> None:
    _, metadata = sentencepiece_metadata(prefix=True)
    ids = from_gguf({**metadata, "tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}).encode(
        "fox"
    )
    assert ids[0] != 1
    assert ids[-1] == 2


def test_phi3_control_tokens_take_in_white_space() -> None:
    _, metadata = sentencepiece_metadata(prefix=True)
    metadata["tokenizer.ggml.tokens"][3:5] = ["<|user|>", "<|end|>"]
    metadata["tokenizer.ggml.token_type"][3:5] = [3, 3]
    phi = from_gguf({**metadata, "general.architecture": "phi3"})
    assert phi.encode("<|user|>\nfox<|end|>\n") == phi.encode("<|user|>fox<|end|>")
    plain = from_gguf(metadata)
    assert plain.encode("<|user|>\nfox") != plain.encode("<|user|>fox")


def test_starts_without_heavy_packages() -> None:
    code = (
        "import sys, pkgutil, importlib, octavo.text as text\n"
        "for module in pkgutil.walk_packages(text.__path__, 'octavo.text.'): importlib.import_module(module.name)\n"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_pre_tokenizer_compiles_and_loses_nothing(backend: Backend) -> None:
    for name in PRE_TOKENIZERS:
        tokenizer = from_gguf(
            {**gguf_metadata(backend), "tokenizer.ggml.pre": name, "tokenizer.ggml.add_bos_token": False}
        )
        for text in TEXTS[:7]:
            assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text, name


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer.ggml.tokens": None},
        {"tokenizer.ggml.tokens": "abc"},
        {"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]},
        {"tokenizer.ggml.tokens": [1, 2]},
        {"tokenizer.ggml.token_type": [1]},
        {"tokenizer.ggml.merges": ["ab"]},
        {"tokenizer.ggml.merges": ["zz qq"]},
        {"tokenizer.ggml.merges": [" a"]},
        {"tokenizer.ggml.pre": 3},
        {"tokenizer.ggml.add_bos_token": "yes"},
        {"tokenizer.ggml.model": "llama"},
    ],
)
def test_malformed_metadata(backend: Backend, change: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError):
        from_gguf({**gguf_metadata(backend), **change})


def test_unknown_names_say_what_is_near(backend: Backend) -> None:
    with pytest.raises(UnknownName, match="qwen2"):
        from_gguf({**gguf_metadata(backend), "tokenizer.ggml.pre": "qwen3"})
    with pytest.raises(UnknownName, match="gpt2"):
        from_gguf({**gguf_metadata(backend), "tokenizer.ggml.model": "bert"})
    odd = from_gguf({**gguf_metadata(backend), "tokenizer.ggml.bos_token_id": 10**7})
    assert odd.bos_id is None


def test_load_tokenizer(folder: Path, backend: Backend) -> None:
    files = Files(tokenizer_dir=folder, chat_template="{{ messages }}")
    assert load_tokenizer(files).chat_template == "{{ messages }}"
    assert load_tokenizer(Files(gguf=Header(gguf_metadata(backend)))).templates
    with pytest.raises(ModelFileError, match="no tokenizer"):
        load_tokenizer(Files())


def test_a_template_that_does_not_compile_is_named_by_its_file(folder: Path) -> None:
    files = Files(tokenizer_dir=folder, chat_template="{{ messages }")
    with pytest.raises(ConfigError, match=r"^mine\.jinja: chat template 'default', line 1: unexpected '}'$"):
        load_text(files, ModelConfig(chat_template="mine.jinja"))
    with pytest.raises(ConfigError, match=r"^chat template 'default', line 1"):
        load_text(files, ModelConfig())


def test_a_control_token_has_a_length(tmp_path: Path, backend: Backend) -> None:
    backend = Backend.from_str(backend.to_str())
    backend.add_special_tokens([AddedToken("x" * 100_000)])
    write_folder(tmp_path, backend)
    with pytest.raises(ModelFileError, match="control token of 100000 characters"):
        load_tokenizer(Files(tokenizer_dir=tmp_path))


def test_a_token_of_unknown_text_that_is_not_there(tmp_path: Path) -> None:
    """Loaded, it would fail at the first request whose text is not all in the vocabulary."""
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "<unk>"}})
    )
    with pytest.raises(ModelFileError, match="<unk>"):
        from_folder(tmp_path)


def test_malformed_folders(tmp_path: Path, backend: Backend) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        from_folder(tmp_path)
    write_folder(tmp_path, backend)
    for content in ("{", "[]", "[" * 100_000, '{"chat_template": 3}'):
        (tmp_path / "tokenizer_config.json").write_text(content)
        with pytest.raises(ModelFileError):
            from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\x00nonsense")
    with pytest.raises(OctavoError):
        from_folder(tmp_path)


def test_named_templates(tmp_path: Path, backend: Backend) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    write_folder(tmp_path, backend, chat_template=named)
    assert from_folder(tmp_path).templates == {"default": "D", "tool_use": "T"}
    (tmp_path / "chat_template.jinja").write_text("J")
    assert from_folder(tmp_path).templates == {"default": "J", "tool_use": "T"}


def test_special_tokens_named_only_in_the_config(tmp_path: Path, backend: Backend) -> None:
    write_folder(tmp_path, backend, additional_special_tokens=["<tool_call>"])
    tokenizer = from_folder(tmp_path)
    assert backend.token_to_id("<tool_call>") in tokenizer.special_ids
    assert {backend.token_to_id(text) for text in SPECIAL} < tokenizer.special_ids
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
