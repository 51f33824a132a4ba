"""read_model: what a name may stand for, what a folder may hold, and the one-line errors for all else."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from weights_support import tiny_model, write_gguf

from octavo.base.config import ModelConfig
from octavo.base.errors import ConfigError, ModelFileError, OctavoError, UnknownName
from octavo.weights.facts import ModelFiles, read_model
from octavo.weights.source import open_source


def read(path: Path, **changes: Any) -> ModelFiles:
    return read_model(ModelConfig(model=str(path), **changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama folder as save_pretrained leaves it."""
    path = tmp_path / "llama"
    tiny_model("llama").save_pretrained(path)
    return path


def edit(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(values | changes))


def test_a_folder_of_safetensors(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    edit(folder / "generation_config.json", eos_token_id=[5, 2], temperature=0.7)
    files = read(folder)
    assert (files.format, files.path, files.tokenizer_dir) == ("safetensors", folder, folder)
    assert files.arch.hidden_size == 32
    assert files.arch.eos_token_ids == (5, 2)  # generation_config's ends first, each once
    assert files.generation_config["temperature"] == 0.7
    assert files.weight_bytes == (folder / "model.safetensors").stat().st_size
    assert files.gguf is None
    assert {name for name, _ in open_source(files).tensors} == tiny_model("llama").state_dict().keys()


def test_sharded_folders_are_read_whole(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    files = read(tmp_path)
    assert len(files.weight_files) > 1
    found = {name: entry.load(torch.float32) for name, entry in open_source(files).tensors}
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


def test_a_gguf_file_and_a_folder_that_holds_one(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "qwen2", tiny_model("qwen2"))
    for path in (tmp_path / "tiny.gguf", tmp_path):
        files = read(path)
        assert (files.format, files.path) == ("gguf", tmp_path / "tiny.gguf")
        assert files.gguf is not None
        assert files.chat_template == "{{ messages }}"
        assert files.arch.eos_token_ids == (2, 3)
        assert files.tokenizer_dir is None
    (tmp_path / "mmproj-tiny.gguf").write_bytes(b"ignored")
    assert read(tmp_path).format == "gguf"
    write_gguf(tmp_path / "other.gguf", "qwen2", tiny_model("qwen2"))
    with pytest.raises(ConfigError, match=r"several GGUF models \(other\.gguf, tiny\.gguf\)"):
        read(tmp_path)


def test_dummy_needs_the_config_alone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="load-format dummy"):
        read(folder)
    files = read(folder, load_format="dummy")
    assert files.format == "dummy"
    assert files.weight_bytes == files.arch.num_parameters() * 4


@pytest.mark.parametrize("case", ["llama_tied_biased", "qwen2", "qwen3", "gemma3", "phi3", "olmo2"])
def test_dummy_weights_fill_every_family(case: str, tmp_path: Path) -> None:
    from octavo.kernels.ops import select
    from octavo.models.decoder import build
    from octavo.weights.load import load_weights

    tiny_model(case).config.save_pretrained(tmp_path)
    edit(tmp_path / "config.json", architectures=[type(tiny_model(case)).__name__])
    files = read(tmp_path, load_format="dummy")
    device = torch.device("cpu")
    models = []
    for seed in (0, 0, 1):
        model = build(files.arch, select(device), torch.float32, device)
        load_weights(model, open_source(files, seed=seed, progress=False))
        models.append({name: tensor.clone() for name, tensor in model.named_parameters()})
    same, again, other = models
    assert same.keys() == again.keys()
    for name, tensor in same.items():
        assert torch.isfinite(tensor).all()
        assert torch.equal(tensor, again[name]), name
        if "norm" in name:
            assert (tensor == 1).all(), name
        else:
            assert not torch.equal(tensor, other[name]), name
            if tensor.numel() > 1000:
                assert abs(tensor.std().item() - 0.02) < 0.003


def test_a_gguf_fills_a_model_as_its_checkpoint_does(tmp_path: Path) -> None:
    """Through the loader of the models themselves: every tensor finds its place, and none is left."""
    from octavo.kernels.ops import select
    from octavo.models.decoder import build
    from octavo.weights.load import load_weights

    device = torch.device("cpu")
    for case in ("llama3", "gemma3", "phi3", "granite"):
        hf = tiny_model(case)
        write_gguf(tmp_path / f"{case}.gguf", case, hf)
        hf.save_pretrained(tmp_path / case)
        parameters = []
        for path in (tmp_path / f"{case}.gguf", tmp_path / case):
            files = read(path)
            model = build(files.arch, select(device), torch.float32, device)
            load_weights(model, open_source(files, progress=False), path=str(path))
            parameters.append(dict(model.named_parameters()))
        for name, tensor in parameters[0].items():
            torch.testing.assert_close(tensor, parameters[1][name], rtol=0, atol=1e-6)


def test_chat_templates_by_precedence(folder: Path, tmp_path: Path) -> None:
    assert read(folder).chat_template is None
    listed = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}, 7]
    edit(folder / "tokenizer_config.json", chat_template=listed)
    assert read(folder).chat_template == "D"
    edit(folder / "tokenizer_config.json", chat_template="S")
    assert read(folder).chat_template == "S"
    edit(folder / "chat_template.json", chat_template="J")
    assert read(folder).chat_template == "J"
    (folder / "chat_template.jinja").write_text("F")
    assert read(folder).chat_template == "F"
    (tmp_path / "mine.jinja").write_text("M")
    assert read(folder, chat_template=str(tmp_path / "mine.jinja")).chat_template == "M"
    with pytest.raises(ConfigError, match="is not a file"):
        read(folder, chat_template=str(tmp_path / "none.jinja"))
    (tmp_path / "empty.jinja").write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        read(folder, chat_template=str(tmp_path / "empty.jinja"))
    (folder / "chat_template.jinja").write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(ModelFileError, match="longer than"):
        read(folder)


def test_a_tokenizer_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "tokenizer"
    other.mkdir()
    edit(other / "tokenizer_config.json", chat_template="O")
    files = read(folder, tokenizer=str(other))
    assert (files.tokenizer_dir, files.chat_template) == (other, "O")
    for name in (str(tmp_path / "absent" / "x"), "x" * 300, "~nobody-of-this-name/x", "x\0"):
        with pytest.raises(ConfigError, match="neither a folder nor a hub name"):
            read(folder, tokenizer=name)
        with pytest.raises(ConfigError, match="is not a file"):
            read(folder, chat_template=name)


def test_unknown_architectures_get_a_hint(folder: Path) -> None:
    edit(folder / "config.json", architectures=["LlamaForCausalLn"])
    with pytest.raises(UnknownName, match="did you mean LlamaForCausalLM"):
        read(folder)


def test_pointers_to_code_are_dropped(folder: Path) -> None:
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "evil.py--Model"})
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    assert "auto_map" not in read(folder).config


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "JSON object"),
        (b"\xff", "UTF-8"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (rb'{"a": "\ud83d\ude00 \ud800"}', "surrogates"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b" " * ((4 << 20) + 1), "longer than"),
        (b'{"architectures": ["LlamaForCausalLM"], "hidden_size": -1}', "hidden_size"),
        (b'{"architectures": ["LlamaForCausalLM"], "hidden_size": 1e400}', "hidden_size"),
    ],
)
def test_configs_are_bounded(content: bytes, match: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(OctavoError, match=match) as caught:
        read(folder)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def test_formats_asked_for_must_be_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds safetensors weights"):
        read(folder, load_format="gguf")
    write_gguf(tmp_path / "tiny.gguf", "qwen2", tiny_model("qwen2"))
    with pytest.raises(ConfigError, match="is a GGUF file"):
        read(tmp_path / "tiny.gguf", load_format="safetensors")


def test_names_that_stand_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # two folders above a checkout there may be an etc
    for name, match in (
        ("", "no model named"),
        ("qwen2.5-coder-0.5", r"did you mean qwen2\.5-coder-0\.5b\?"),
        ("nothing like it", "known demo models: qwen2.5-coder-0.5b, gemma-3-270m"),
        ("a/b/c", "no folder, no file"),
        ("./absent", "no folder, no file"),
        ("models/absent.gguf", "no folder, no file"),
        ("../../etc", "no folder, no file"),
        ("x\ny", "control characters"),
        ("x" * 5000, "too long"),
        ("x" * 300, "no folder, no file"),  # longer than a file's name may be
        ("~nobody-of-this-name/model", "no folder, no file"),
    ):
        with pytest.raises(ConfigError, match=match) as caught:
            read_model(ModelConfig(model=name))
        assert "\n" not in str(caught.value)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelFileError, match=r"not a \.gguf file"):
        read(tmp_path / "notes.txt")
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match="name the folder"):
        read(tmp_path / "model.safetensors")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="regular file"):
        read(tmp_path / "pipe.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no weights"):
        read(tmp_path / "empty")


def test_facts_need_no_torch(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "qwen2", tiny_model("qwen2"))
    code = (
        "import sys; from octavo.base.config import ModelConfig; from octavo.weights.facts import read_model;"
        f"files = read_model(ModelConfig(model={str(tmp_path / 'tiny.gguf')!r}));"
        "print(files.arch.hidden_size, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["32", "False"]
