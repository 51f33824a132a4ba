"""A GGUF file of a tiny model of each family must look exactly like the Hugging Face checkpoint it was made from."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from weights_support import FAMILIES, tiny_model, write_gguf

from octavo.base.config import ModelConfig
from octavo.base.errors import ConfigError, ModelFileError, UnknownName
from octavo.models.registry import read_architecture
from octavo.text.tokenizer import from_gguf
from octavo.weights.facts import read_model
from octavo.weights.gguf import read_gguf
from octavo.weights.gguf_config import gguf_config
from octavo.weights.source import open_source
from octavo.weights.source_gguf import GgufSource


@pytest.mark.parametrize("case", FAMILIES)
def test_tensors_equal_the_checkpoint(case: str, tmp_path: Path) -> None:
    model = tiny_model(case)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, case, model)
    expected = model.state_dict()
    if model.config.tie_word_embeddings:
        expected.pop("lm_head.weight", None)
    found = dict(open_source(read_model(ModelConfig(model=str(path)))).tensors)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        entry = found[name]
        assert entry.shape == tuple(tensor.shape), name
        # Adding one to Gemma's norms and taking it off again rounds in the last place.
        tolerance = 1e-6 if case == "gemma3" and name.endswith("norm.weight") else 0.0
        torch.testing.assert_close(entry.load(torch.float32), tensor, rtol=0, atol=tolerance, msg=name)
        if tensor.dim() == 2:
            assert torch.equal(entry.raw().view(torch.float32), tensor), name


@pytest.mark.parametrize("case", FAMILIES)
def test_architecture_equals_the_config(case: str, tmp_path: Path) -> None:
    model = tiny_model(case)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, case, model)
    expected = msgspec.to_builtins(
        read_architecture(model.config.to_dict() | {"architectures": [type(model).__name__]})
    )
    found = msgspec.to_builtins(read_architecture(gguf_config(read_gguf(path))))
    assert list(found.pop("eos_token_ids")) == [2, 3]  # the file's, and the end of turn found by its text
    for arch in (expected, found):
        arch.pop("eos_token_ids", None)
        arch.pop("family")  # a Mistral without a window is a Llama in GGUF
    if case == "phi3":
        found_rope, expected_rope = (arch["layers"][0]["attention"]["rope"] for arch in (found, expected))
        # The file states what transformers works out.
        assert found_rope["attention_factor"] == pytest.approx((4 / 3) ** 0.5, rel=1e-6)  # 256 over 64 tokens
        assert expected_rope["attention_factor"] is None
        for arch in (found, expected):
            for layer in arch["layers"]:
                layer["attention"]["rope"].pop("attention_factor")
    assert found == expected


def test_divisors_that_are_not_llama3s_pass_through_as_longrope(tmp_path: Path) -> None:
    import weights_support

    model = tiny_model("llama3")
    original = weights_support.llama3_factors
    weights_support.llama3_factors = lambda rope, head_dim: original(rope, head_dim) * 1.5
    try:
        write_gguf(tmp_path / "odd.gguf", "llama3", model)
    finally:
        weights_support.llama3_factors = original
    rope = read_architecture(gguf_config(read_gguf(tmp_path / "odd.gguf"))).layers[0].attention.rope
    assert rope is not None
    assert rope.kind == "longrope"
    assert rope.short_factor == rope.long_factor
    assert rope.long_factor == pytest.approx(original(model.config.rope_parameters, 8) * 1.5)
    assert rope.attention_factor == 1.0


@pytest.mark.parametrize(("qtype", "case"), [("Q8_0", "llama"), ("Q4_0", "qwen3"), ("F16", "granite")])
def test_quantised_rows_are_put_back_in_order(qtype: str, case: str, tmp_path: Path) -> None:
    model = tiny_model(case)
    write_gguf(tmp_path / "tiny.gguf", case, model, qtype=qtype)
    file = read_gguf(tmp_path / "tiny.gguf")
    name = "model.layers.1.self_attn.q_proj.weight"
    entry = dict(GgufSource(file, gguf_config(file)).tensors)[name]
    assert entry.qtype == qtype
    worst = {"Q8_0": 2e-3, "Q4_0": 2e-2, "F16": 1e-4}[qtype]
    torch.testing.assert_close(entry.load(torch.float32), model.state_dict()[name], rtol=0, atol=worst)
    from octavo.weights.gguf_dequant import dequantise

    kind = file.tensors["blk.1.attn_q.weight"].qtype
    assert torch.equal(dequantise(entry.raw(), kind, torch.float32), entry.load(torch.float32))


def test_a_foreign_tensor_and_a_foreign_architecture_are_named(tmp_path: Path) -> None:
    import gguf as library

    write_gguf(tmp_path / "tiny.gguf", "qwen2", tiny_model("qwen2"))
    file = read_gguf(tmp_path / "tiny.gguf")
    file.tensors["blk.0.attn_strange.weight"] = next(iter(file.tensors.values()))
    object.__setattr__(file.tensors["blk.0.attn_strange.weight"], "name", "blk.0.attn_strange.weight")
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_strange\.weight.*qwen2"):
        GgufSource(file, {"num_attention_heads": 4, "num_key_value_heads": 2})
    writer = library.GGUFWriter(tmp_path / "odd.gguf", "qwen22")
    writer.add_tensor("a", np.zeros(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnknownName, match=r"GGUF architecture 'qwen22'; did you mean qwen2"):
        gguf_config(read_gguf(tmp_path / "odd.gguf"))


KINDS = (
    0,
    -1,
    1 << 40,
    1.5,
    float("nan"),
    True,
    "x",
    "",
    np.array([1, 2]),
    np.array([0.5]),
    np.array([], dtype=np.int64),
)


@pytest.mark.parametrize("case", ["qwen2", "llama3", "gemma3"])
def test_a_value_of_another_kind_is_refused_or_of_no_consequence(case: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", case, tiny_model(case))
    good = read_gguf(tmp_path / "tiny.gguf")
    names = {*good.metadata, f"{good.metadata['general.architecture']}.rope.scaling.type"}
    for name in names - {"general.architecture"}:
        for value in KINDS:
            file = replace(good, metadata={**good.metadata, name: value})
            with suppress(ConfigError, ModelFileError):
                read_architecture(gguf_config(file))
            with suppress(ConfigError, ModelFileError):
                from_gguf(file.metadata)


def test_a_split_model_is_read_as_one(tmp_path: Path) -> None:
    import gguf as library

    write_gguf(tmp_path / "tiny.gguf", "qwen2", model := tiny_model("qwen2"))
    whole = library.GGUFReader(tmp_path / "tiny.gguf")
    tensors = list(whole.tensors)
    for part, chosen in enumerate((tensors[::2], tensors[1::2])):
        writer = library.GGUFWriter(tmp_path / f"split-{part + 1:05d}-of-00002.gguf", "qwen2")
        if part == 0:
            for key in ("block_count", "context_length", "embedding_length", "feed_forward_length"):
                writer.add_uint32(f"qwen2.{key}", whole.fields[f"qwen2.{key}"].contents())
            for key in ("head_count", "head_count_kv"):
                writer.add_uint32(f"qwen2.attention.{key}", whole.fields[f"qwen2.attention.{key}"].contents())
            writer.add_layer_norm_rms_eps(1e-5)
        writer.add_uint16("split.no", part)
        writer.add_uint16("split.count", 2)
        for tensor in chosen:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    (tmp_path / "tiny.gguf").unlink()
    files = read_model(ModelConfig(model=str(tmp_path)))  # the folder holds one model, in two parts
    assert [path.name for path in files.weight_files] == ["split-00001-of-00002.gguf", "split-00002-of-00002.gguf"]
    found = {name: entry.load(torch.float32) for name, entry in open_source(files).tensors}
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())
    (tmp_path / "split-00002-of-00002.gguf").unlink()
    with pytest.raises(ModelFileError, match="00002-of-00002"):
        read_model(ModelConfig(model=str(tmp_path / "split-00001-of-00002.gguf")))
