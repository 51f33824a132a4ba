"""Model repositories against a stand-in hub: what is fetched, at which commit, with which headers."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import StandIn, hub_stand_in
from weights_support import tiny_model, write_gguf

from octavo.base.config import ModelConfig
from octavo.base.errors import ConfigError, ModelFileError
from octavo.weights import fetch_heads
from octavo.weights.facts import ModelFiles, read_configs, read_model
from octavo.weights.hub import choose_files


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    folder = tmp_path / "source"
    tiny_model("llama").save_pretrained(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"tokenizer.json": b"{}", "README.md": b"#", "modeling.py": b"raise SystemExit", "pytorch_model.bin": b"x"}
    files |= {"onnx/model.safetensors": b"x", "consolidated.safetensors": b"x"}
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with hub_stand_in() as server:
        server.repos["owner/tiny"] = files
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def read(name: str, tmp_path: Path, **changes: Any) -> ModelFiles:
    return read_model(ModelConfig(model=name, download_dir=str(tmp_path / "cache"), **changes))


def test_a_repository_comes_from_one_commit(hub: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="octavo.weights"):
        files = read("owner/tiny", tmp_path)
    assert files.format == "safetensors"
    assert files.arch.hidden_size == 32
    assert files.tokenizer_dir == files.path
    names = {path.name for path in files.path.iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    asked = [path for _, path, _ in hub.requests if "/resolve/" in path]
    assert asked
    assert all(f"/resolve/{hub.commit}/" in path for path in asked)
    assert hub.commit in caplog.text


def test_a_second_start_needs_no_hub(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read("owner/tiny", tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert read("owner/tiny", tmp_path).path == first.path
    hub.status = 503
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    assert read("owner/tiny", tmp_path).path == first.path
    with pytest.raises(ConfigError, match="neither a local path nor a fetched model"):
        read("owner/other", tmp_path)


def test_offline_uses_what_is_there(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read("owner/tiny", tmp_path)
    asked = len(hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert read("owner/tiny", tmp_path).path == first.path
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        read("owner/other", tmp_path)
    assert len(hub.requests) == asked


def test_dummy_weights_fetch_no_weights(hub: StandIn, tmp_path: Path) -> None:
    assert read("owner/tiny", tmp_path, load_format="dummy").format == "dummy"
    assert not any("model.safetensors" in path for _, path, _ in hub.requests)


def test_the_token_goes_to_the_hub_alone(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with hub_stand_in() as store:
        store.repos = hub.repos
        hub.files_at = store.url.replace("127.0.0.1", "localhost")
        read("owner/tiny", tmp_path)
        assert any("hf_secret" in headers.get("authorization", "") for _, _, headers in lowered(hub))
        assert store.requests
        assert all("hf_secret" not in str(headers) for _, _, headers in store.requests)


def lowered(hub: StandIn) -> list[tuple[str, str, dict[str, str]]]:
    return [
        (method, path, {name.lower(): value for name, value in headers.items()})
        for method, path, headers in hub.requests
    ]


@pytest.mark.usefixtures("hub")
def test_revisions(tmp_path: Path) -> None:
    assert read("owner/tiny", tmp_path, revision="main").format == "safetensors"
    with pytest.raises(ConfigError, match="has no revision 'v2'"):
        read("owner/tiny", tmp_path, revision="v2")


def test_errors_are_one_line(hub: StandIn, tmp_path: Path) -> None:
    for name, match in (
        ("owner/none", "neither a local path nor a public model"),
        ("owner/tiny:x.gguf", r"no GGUF file 'x\.gguf'"),
        ("owner/a--b", "no hub name"),
    ):
        with pytest.raises(ConfigError, match=match) as caught:
            read(name, tmp_path)
        assert "\n" not in str(caught.value)
    hub.status = 403
    with pytest.raises(ConfigError, match="the hub answered 403"):
        read("owner/tiny", tmp_path)


def test_one_gguf_of_a_repository(hub: StandIn, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "qwen2", tiny_model("qwen2"))
    data = (tmp_path / "tiny.gguf").read_bytes()
    hub.repos["owner/tiny-GGUF"] = {
        "tiny-Q8_0.gguf": data,
        "tiny-Q4_K_M.gguf": data,
        "mmproj-tiny.gguf": b"x",
        "README.md": b"",
    }
    for wanted in ("tiny-Q4_K_M.gguf", "Q4_K_M", "q4_k_m"):
        files = read(f"owner/tiny-GGUF:{wanted}", tmp_path)
        assert (files.format, files.path.name) == ("gguf", "tiny-Q4_K_M.gguf")
    assert not list((tmp_path / "cache").rglob("tiny-Q8_0.gguf"))
    with pytest.raises(ConfigError, match=r"holds 2 GGUF files; name one as owner/tiny-GGUF:FILE"):
        read("owner/tiny-GGUF", tmp_path)
    with pytest.raises(ConfigError, match="no GGUF file 'Q2_K'"):
        read("owner/tiny-GGUF:Q2_K", tmp_path)


def test_a_tokenizer_repository(hub: StandIn, tmp_path: Path) -> None:
    hub.repos["owner/words"] = {"tokenizer.json": b"{}", "model.safetensors": b"x"}
    hub.repos["owner/words"]["tokenizer_config.json"] = json.dumps({"chat_template": "W"}).encode()
    files = read("owner/tiny", tmp_path, tokenizer="owner/words")
    assert files.tokenizer_dir is not None
    assert {path.name for path in files.tokenizer_dir.iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    assert files.chat_template == "W"


def test_choice_of_files() -> None:
    def choose(*names: str, file: str | None = None) -> list[str]:
        return choose_files("o/r", list(names), file, True)

    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = "model.safetensors.index.json"
    assert choose("config.json", *shards, index, "consolidated.safetensors") == ["config.json", *shards, index]
    assert choose("config.json", "weights.safetensors") == ["config.json", "weights.safetensors"]
    split = ["q8/m-00001-of-00002.gguf", "q8/m-00002-of-00002.gguf"]
    assert choose(*split, "m-q4.gguf", file="q8") == split
    assert choose("config.json", "m.gguf") == ["m.gguf"]
    with pytest.raises(ConfigError, match="only pickle"):
        choose("config.json", "pytorch_model.bin")
    with pytest.raises(ConfigError, match="no weights"):
        choose("config.json", "modeling.py")
    with pytest.raises(ConfigError, match="no GGUF file"):
        choose("../m.gguf", file="m.gguf")


@pytest.fixture
def packed(hub: StandIn, tmp_path: Path) -> bytes:
    """A .gguf file, alone in its repository."""
    write_gguf(tmp_path / "tiny.gguf", "qwen2", tiny_model("qwen2"))
    hub.repos["owner/packed"] = {"q/tiny-Q4_K_M.gguf": (tmp_path / "tiny.gguf").read_bytes()}
    return hub.repos["owner/packed"]["q/tiny-Q4_K_M.gguf"]


def facts(name: str, tmp_path: Path) -> ModelFiles:
    return read_configs(ModelConfig(model=name, download_dir=str(tmp_path / "cache")))


@pytest.mark.parametrize("name", ["owner/packed:q4_k_m", "owner/packed"])
@pytest.mark.parametrize("first", [4, 512, 1 << 20])
def test_of_a_gguf_whose_facts_are_asked_the_header_comes(
    hub: StandIn, packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, first: int
) -> None:
    monkeypatch.setattr(fetch_heads, "FIRST_BYTES", first)
    found = facts(name, tmp_path)
    begin = min(tensor.offset for tensor in found.gguf.tensors.values())
    assert (found.format, found.weight_bytes) == ("gguf", len(packed))
    assert hub.sent < max(first + 1, 2 * begin + 1)
    assert not list((tmp_path / "cache").rglob("*.gguf"))
    whole = read(name, tmp_path)
    assert (whole.arch, whole.config, whole.generation_config) == (found.arch, found.config, found.generation_config)
    sent = hub.sent
    assert facts(name, tmp_path).path == whole.path
    assert hub.sent == sent  # it is here already


def test_a_hub_without_ranges_sends_the_file(hub: StandIn, packed: bytes, tmp_path: Path) -> None:
    hub.ranges = False
    assert facts("owner/packed", tmp_path).weight_bytes == len(packed)
    assert list((tmp_path / "cache").rglob("*.gguf"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: b"PK" + data[2:], "not a GGUF file"),
        (lambda data: data[:3000], "ends inside|outside|beyond"),
        (lambda data: data[:16] + b"\xff" * 8 + data[24:], "metadata keys"),
    ],
)
def test_a_header_that_is_none(
    hub: StandIn, packed: bytes, tmp_path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    hub.repos["owner/packed"]["q/tiny-Q4_K_M.gguf"] = change(packed)
    with pytest.raises(ModelFileError, match=said):
        facts("owner/packed", tmp_path)


def test_headers_come_with_the_token_and_from_another_host_without(
    hub: StandIn, packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with hub_stand_in() as store:
        store.repos = hub.repos
        hub.files_at = store.url
        assert facts("owner/packed", tmp_path).weight_bytes == len(packed)
    assert any(
        headers.get("authorization", "").endswith("hf_secret") for _, path, headers in lowered(hub) if "/res" in path
    )
    assert not any("authorization" in headers for _, _, headers in lowered(store))
