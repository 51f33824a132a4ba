"""Building, loading and the seams of the decoder."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from octavo.base.errors import ModelFileError
from octavo.kernels.ops import select
from octavo.models.arch import Rope
from octavo.models.decoder import build
from octavo.models.registry import read_architecture
from octavo.models.rotary import Rotary
from octavo.nn import rope as formula
from octavo.nn.norm import RmsNorm
from octavo.nn.quant.base import QuantMethod
from octavo.nn.quant.plain import Plain
from octavo.testing.parity import PagedModel, prompt_tokens
from octavo.testing.tiny import CASES, Checkpoint, tiny
from octavo.weights.load import canonical, ignorable, load_weights

pytestmark = pytest.mark.filterwarnings("ignore")
CPU = torch.device("cpu")


def fresh(name="llama", dtype=torch.float32, **options):
    model = tiny(name)
    return build(read_architecture(model.config), select(CPU), dtype, CPU, **options), dict(model.checkpoint.state)


@pytest.mark.parametrize("name", list(CASES))
def test_every_parameter_is_filled(name):
    decoder, state = fresh(name)
    for parameter in decoder.parameters():
        parameter.fill_(float("nan"))
    load_weights(decoder, Checkpoint(state))
    assert all(torch.isfinite(parameter).all() for parameter in decoder.parameters())


def test_missing_tensors_are_listed():
    decoder, state = fresh()
    for name in list(state):
        if "layers.1." in name:
            del state[name]
    with pytest.raises(ModelFileError, match=r"my-model: 16 tensors are missing: model\.layers\.1\..* and 11 more"):
        load_weights(decoder, Checkpoint(state), path="my-model")


def test_left_over_tensors_are_listed():
    decoder, state = fresh()
    state["model.layers.0.self_attn.q_proj.lora_A"] = torch.zeros(1)
    with pytest.raises(ModelFileError, match=r"1 tensors have no place in this model: .*q_proj\.lora_A"):
        load_weights(decoder, Checkpoint(state))


def test_a_wrong_shape_names_the_tensor():
    decoder, state = fresh()
    state["model.layers.1.mlp.up_proj.weight"] = torch.zeros(55, 40)
    message = r"up_proj\.weight has shape \[55, 40\], expected \[56, 40\]"
    with pytest.raises(ModelFileError, match=message):
        load_weights(decoder, Checkpoint(state))


def test_a_tensor_given_twice_is_refused():
    decoder, state = fresh()
    parts = [state[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"]
    state["model.layers.0.self_attn.qkv_proj.weight"] = torch.cat(parts)
    with pytest.raises(ModelFileError, match="a second time"):
        load_weights(decoder, Checkpoint(state))


def test_fused_names_fill_any_family():
    decoder, state = fresh("qwen3")
    plain, _ = fresh("qwen3")
    load_weights(plain, Checkpoint(dict(state)))
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        parts = [state.pop(f"{prefix}self_attn.{part}_proj.weight") for part in "qkv"]
        state[f"{prefix}self_attn.qkv_proj.weight"] = torch.cat(parts)
        parts = [state.pop(f"{prefix}mlp.{part}_proj.weight") for part in ("gate", "up")]
        state[f"{prefix}mlp.gate_up_proj.weight"] = torch.cat(parts)
    load_weights(decoder, Checkpoint(state))
    for ours, theirs in zip(decoder.parameters(), plain.parameters()):
        assert torch.equal(ours, theirs)


def test_names_of_other_exports():
    assert canonical("language_model.model.layers.3.mlp.up_proj.weight") == "model.layers.3.mlp.up_proj.weight"
    assert canonical("model.language_model.norm.weight") == "model.norm.weight"
    assert canonical("layers.0.input_layernorm.weight") == "model.layers.0.input_layernorm.weight"
    assert canonical("language_model.lm_head.weight") == "lm_head.weight"
    assert canonical("score.weight") == "score.weight"
    assert ignorable("model.layers.0.self_attn.rotary_emb.inv_freq")
    assert ignorable("vision_tower.vision_model.embeddings.patch_embedding.weight")
    assert ignorable("model.multi_modal_projector.mm_input_projection_weight")
    assert not ignorable("model.layers.0.self_attn.q_proj.weight_scale")


def test_a_tied_model_ignores_the_heads_copy():
    decoder, state = fresh("qwen2")
    state["lm_head.weight"] = torch.full_like(state["model.embed_tokens.weight"], float("nan"))
    load_weights(decoder, Checkpoint(state))
    assert decoder.head.linear is None
    assert torch.isfinite(decoder.logits(torch.ones(1, 40))).all()


def test_gemma_norms_keep_their_offset_in_bf16():
    decoder, state = fresh("gemma3", dtype=torch.bfloat16)
    load_weights(decoder, Checkpoint(state))
    norm = decoder.blocks[0].norm("input_layernorm")
    assert isinstance(norm, RmsNorm)
    torch.testing.assert_close(norm.weight, 1.0 + state["model.layers.0.input_layernorm.weight"])
    assert decoder.embedding.multiplier == float(torch.tensor(40**0.5, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", ["llama", "gemma3", "olmo2", "phi3-longrope"])
def test_bf16_runs_and_stays_near(name):
    paged = PagedModel(tiny(name))
    tokens = prompt_tokens(12)
    exact = paged.prefill(paged.sequence(tokens))
    half = PagedModel(tiny(name), dtype=torch.bfloat16)
    rough = half.prefill(half.sequence(tokens), chunk=5)
    assert rough.dtype == torch.float32
    assert torch.isfinite(rough).all()
    assert (rough.exp() - exact.exp()).abs().max() < 0.15


def test_logits_are_fp32_for_the_rows_asked():
    decoder, state = fresh("granite", dtype=torch.bfloat16)
    load_weights(decoder, Checkpoint(state))
    logits = decoder.logits(torch.randn(3, 40, dtype=torch.bfloat16))
    assert (logits.shape, logits.dtype) == ((3, 257), torch.float32)


def test_rotation_tables_are_no_longer_than_needed():
    arch = read_architecture(tiny("llama").config)
    decoder = build(arch, select(CPU), torch.float32, CPU, max_position=50)
    assert decoder.rotaries[0].table.shape == (50, 10)
    assert build(arch, select(CPU), torch.float32, CPU, max_position=10**9).rotaries[0].table.shape == (256, 10)


def test_a_hosts_rotation_table_grows_with_the_positions_that_come():
    rope = Rope(dim=8, theta=10_000.0)
    whole = Rotary(rope, 9000, torch.device("meta"))
    assert whole.table is not None
    assert whole.table.shape[0] == 9000  # a device's is never moved
    rotary = Rotary(rope, 9000, CPU)
    rows = [rotary.at(torch.tensor(positions), None)[0].shape[0] for positions in ([], [5, 511], [512, 3], [8999], [1])]
    assert rows == [512, 512, 1024, 9000, 9000]
    angles = torch.outer(torch.arange(9000).float(), formula.default_frequencies(rope.theta, rope.dim))
    assert torch.equal(rotary.at(torch.tensor([1]), None)[0], formula.cos_sin(angles, 1.0))


def test_layers_share_their_rotation():
    decoder, _ = fresh("gemma3")
    assert len(decoder.rotaries) == 2
    decoder, _ = fresh("smollm3")
    assert (len(decoder.rotaries), decoder.layer_rope) == (1, [0, 0, 0, None])


def test_longrope_depends_on_the_prompt_not_on_the_chunk():
    rope = read_architecture(tiny("phi3-longrope").config).layers[0].attention.rope
    rotary = Rotary(rope, 256, CPU)
    positions = torch.tensor([0, 5, 31, 32])
    _, alone = rotary.at(positions, None)
    _, short = rotary.at(positions, torch.full((4,), 20))
    _, long = rotary.at(positions, torch.full((4,), 33))
    assert alone.tolist() == [0, 5, 31, 32 + 256]
    assert short.tolist() == alone.tolist()
    assert long.tolist() == [256, 261, 287, 288]


@dataclass
class Halved(Plain):
    """A quantization method in a few lines: weights kept at half their size, doubled when applied."""

    def load(self, layer, rows, entry):
        super().load(layer, rows, SimpleNamespace(shape=entry.shape, load=lambda dtype: entry.load(dtype) / 2))

    def apply(self, ops, layer, x, bias):
        out = super().apply(ops, layer, x, None) * 2
        return out if bias is None else out + bias

    apply_normed = QuantMethod.apply_normed


def test_a_quantization_method_needs_no_word_from_the_model():
    paged = PagedModel(tiny("llama"))
    tokens = prompt_tokens(9)
    expected = paged.prefill(paged.sequence(tokens))
    decoder, state = fresh("llama", method=Halved())
    load_weights(decoder, Checkpoint(state))
    paged.decoder = decoder
    torch.testing.assert_close(paged.prefill(paged.sequence(tokens)), expected, atol=1e-4, rtol=1e-4)


def test_the_parameter_count_is_right_without_biases():
    for name in ("qwen3", "gemma3", "olmo2", "phi3"):
        decoder, _ = fresh(name)
        assert decoder.arch.num_parameters() == sum(p.numel() for p in decoder.parameters())


def test_a_saved_folder_can_be_read_back(tmp_path):
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    folder = tiny("qwen2").save(tmp_path)
    decoder, _ = fresh("qwen2")
    load_weights(decoder, Checkpoint(load_file(folder / "model.safetensors")), path=str(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("hello world")["input_ids"]
    assert ids
    assert max(ids) < 257
    assert tokenizer.decode(ids) == "hello world"
