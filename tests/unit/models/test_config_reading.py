"""Old and new spellings of a config, defaults, and what is refused."""

import pytest

from octavo.base.errors import ConfigError, UnknownName
from octavo.models.registry import read_architecture

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def read(**changes):
    return read_architecture({**LLAMA, **changes})


def family(name, **changes):
    return read(architectures=[name], **changes)


def windows(arch):
    return [layer.attention.window for layer in arch.layers]


def test_defaults_are_transformers():
    arch = read(num_key_value_heads=None)
    attention = arch.layers[0].attention
    assert (attention.num_kv_heads, attention.head_dim, attention.scale) == (8, 8, pytest.approx(8**-0.5))
    assert (arch.norm_eps, arch.tie_embeddings, arch.dtype, arch.eos_token_ids) == (1e-6, False, "float32", ())
    assert attention.rope.theta == 10_000.0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0},
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
            {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128},
        ),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8,
                "low_freq_factor": 1,
                "high_freq_factor": 4,
                "original_max_position_embeddings": 64,
            },
        ),
    ],
)
def test_rope_keys_of_both_generations(old, new):
    assert read(**old).layers == read(rope_parameters=new).layers


def test_a_rotation_nested_by_layer_type():
    one = {"rope_type": "linear", "rope_theta": 7e4, "factor": 2.0}
    assert read(rope_parameters={"full_attention": one}).layers == read(rope_parameters=one).layers
    assert read(rope_parameters={"full_attention": one, "sliding_attention": one}).layers[0].attention.rope.factor == 2
    other = {"rope_type": "default", "rope_theta": 1e4}
    with pytest.raises(ConfigError, match="each layer type is not supported by this family"):
        read(rope_parameters={"full_attention": one, "sliding_attention": other})


LLAMA32 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        (None, 512),
        (YARN | {"original_max_position_embeddings": 512}, 2048),
        (YARN | {"original_max_position_embeddings": 64}, 512),
        ({"type": "dynamic", "factor": 2.0}, 1024),
        ({"type": "linear", "factor": 2.0}, 512),
        (LLAMA32 | {"original_max_position_embeddings": 64}, 512),  # 32 times 64 is more than the model was trained on
    ],
)
def test_the_longest_context_counts_what_yarn_and_dynamic_add(scaling, context):
    assert read(rope_scaling=scaling).max_position == context


def test_layers_with_a_window_do_not_bound_the_context():
    yarn = YARN | {"original_max_position_embeddings": 512}
    assert family("Olmo3ForCausalLM", rope_scaling=yarn, sliding_window=64).max_position == 2048
    assert family("MistralForCausalLM", sliding_window=64).max_position == 512


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be a whole number from 1"),
        ({"hidden_size": -64}, "hidden_size must be"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number .* found 'many'"),
        ({"vocab_size": 2**60}, "vocab_size must be"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number from 1 to 1024"),
        ({"num_attention_heads": 7}, "multiple of num_key_value_heads|multiple of num_attention_heads"),
        ({"hidden_size": 60}, r"hidden_size \(60\) must be a multiple of num_attention_heads \(8\)"),
        ({"num_key_value_heads": 3}, r"num_attention_heads \(8\) must be a multiple of num_key_value_heads \(3\)"),
        ({"head_dim": 7}, "even number of rotated dims"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number"),
        ({"rope_theta": float("inf")}, "rope_theta must be a number"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": [1]}, "rope_scaling must be a JSON object, found list"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not supported"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq quantized checkpoints are not supported"),
        ({"architectures": []}, "architectures must be a list"),
        ({"architectures": None}, "architectures must be a list"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalML"]}, "unknown model 'LlamaForCausalML'; did you mean LlamaForCausalLM"),
        ({"rope_scaling": {"rope_type": "yarm", "factor": 2.0}}, "unknown rope type 'yarm'; did you mean yarn"),
        ({"hidden_act": "sillu"}, "unknown activation 'sillu'; did you mean silu"),
        ({"torch_dtype": "float8"}, "unknown dtype 'float8'; did you mean"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attenton"] * 4},
            "unknown layer type 'full_attenton'; did you mean full_attention",
        ),
    ],
)
def test_unknown_names_come_with_near_ones(changes, message):
    with pytest.raises(UnknownName, match=message):
        read(**changes)


def test_the_first_known_of_several_architectures_is_taken():
    assert read(architectures=["MyFork", "LlamaForCausalLM"]).family == "llama"


def test_dtype_and_token_ids():
    assert read(torch_dtype="torch.bfloat16").dtype == "bfloat16"
    assert read(dtype="float16", torch_dtype="bfloat16").dtype == "float16"
    assert read(eos_token_id=[5, 7, 10**9, -1]).eos_token_ids == (5, 7)


def test_mistral_window():
    assert windows(family("MistralForCausalLM", sliding_window=64)) == [64] * 4
    assert windows(family("MistralForCausalLM", sliding_window=None)) == [None] * 4
    assert windows(family("MistralForCausalLM", max_position_embeddings=8192)) == [4096] * 4
    assert windows(family("MistralForCausalLM", sliding_window=512)) == [None] * 4  # as long as the context


@pytest.mark.parametrize("name", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwen_windows(name):
    assert windows(family(name, sliding_window=64)) == [None] * 4
    upper = family(name, sliding_window=64, use_sliding_window=True, max_window_layers=3)
    assert windows(upper) == [None, None, None, 64]
    types = ["sliding_attention", "full_attention"] * 2
    assert windows(family(name, sliding_window=8, use_sliding_window=True, layer_types=types)) == [8, None, 8, None]


def test_gemma3_published_config_leaves_nearly_everything_out():
    """The text_config of a published 4B checkpoint."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "torch_dtype": "bfloat16",
        "eos_token_id": [1, 106],
    }
    arch = read_architecture(config)
    assert windows(arch)[:7] == [1024] * 5 + [None, 1024]
    sliding, full = arch.layers[0].attention.rope, arch.layers[5].attention.rope
    assert (sliding.kind, sliding.theta) == ("default", 10_000.0)
    assert (full.kind, full.theta, full.factor) == ("linear", 1_000_000.0, 8.0)
    assert (arch.vocab_size, arch.tie_embeddings, arch.dtype) == (262_208, True, "bfloat16")
    assert (arch.eos_token_ids, arch.layers[0].attention.scale) == ((1, 106), 1 / 16)


def test_gemma3_bases_of_old_files():
    arch = family("Gemma3ForCausalLM", rope_theta=2e6, rope_local_base_freq=3e4, sliding_window_pattern=2, head_dim=8)
    assert [layer.attention.rope.theta for layer in arch.layers] == [3e4, 2e6, 3e4, 2e6]


def test_gemma3_limits_are_named():
    with pytest.raises(ConfigError, match="only causal Gemma 3"):
        family("Gemma3ForCausalLM", use_bidirectional_attention=True)
    with pytest.raises(ConfigError, match="text_config is missing; only the text part"):
        family("Gemma3ForConditionalGeneration")


def test_phi3_longrope():
    scaling = {"type": "su", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}
    arch = family(
        "Phi3ForCausalLM",
        rope_scaling=scaling,
        partial_rotary_factor=0.75,
        original_max_position_embeddings=128,
        sliding_window=47,
    )
    rope = arch.layers[0].attention.rope
    assert (rope.kind, rope.dim, rope.original_max_position, rope.factor) == ("longrope", 6, 128, 4.0)
    assert (arch.rope_switch, arch.rope_salt(128), arch.rope_salt(129)) == (128, "", "longrope")
    assert windows(arch) == [47] * 4
    with pytest.raises(ConfigError, match="long_factor must be a list of 4 numbers"):
        family("Phi3ForCausalLM", rope_scaling={**scaling, "short_factor": [1.0] * 4})
    with pytest.raises(ConfigError, match="rope type 'linear' is not supported by Phi-3"):
        family("Phi3ForCausalLM", rope_scaling={"type": "linear", "factor": 2.0})


def test_dynamic_rope_salts_long_prompts_by_their_length():
    arch = read(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert (arch.rope_switch, arch.rope_salt(512), arch.rope_salt(600)) == (512, "", "dynamic600")
    assert read().rope_switch is None
    assert read().rope_salt(10**6) == ""


def test_smollm3_layers_without_rotation():
    arch = family("SmolLM3ForCausalLM")
    assert [layer.attention.rope is None for layer in arch.layers] == [False, False, False, True]
    assert arch.layers[0].attention.rope.theta == 2_000_000.0
    arch = family("SmolLM3ForCausalLM", no_rope_layers=[0, 1, 1, 0])
    assert [layer.attention.rope is None for layer in arch.layers] == [True, False, False, True]
    with pytest.raises(ConfigError, match="no_rope_layers must be a list of 4 zeros and ones"):
        family("SmolLM3ForCausalLM", no_rope_layers=[1])


def test_granite_multipliers():
    arch = family(
        "GraniteForCausalLM",
        embedding_multiplier=12,
        attention_multiplier=0.015625,
        residual_multiplier=0.22,
        logits_scaling=8,
    )
    assert (arch.embedding_multiplier, arch.logits_divisor) == (12.0, 8.0)
    assert (arch.layers[0].attention.scale, arch.layers[0].residual_multiplier) == (0.015625, 0.22)


def test_default_patterns_of_layers():
    """Published files of these families may leave `layer_types` out."""
    olmo = family("Olmo3ForCausalLM", sliding_window=32, rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert windows(olmo) == [32, 32, 32, None]
    assert [layer.attention.rope.kind for layer in olmo.layers] == ["default"] * 3 + ["linear"]
    assert {layer.attention.rope.theta for layer in olmo.layers} == {500_000.0}
    gemma = family("Gemma2ForCausalLM", sliding_window=32, head_dim=8)
    assert windows(gemma) == [32, None, 32, None]
    assert (gemma.layers[0].attention.softcap, gemma.logits_softcap) == (50.0, 30.0)
    assert family("Gemma2ForCausalLM", attn_logit_softcapping=None).layers[0].attention.softcap is None
