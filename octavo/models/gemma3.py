"""Gemma 3: the text models, and the text half of the multimodal ones (images are refused by the API)."""

from octavo.base.errors import ConfigError
from octavo.models.arch import Architecture, Layer
from octavo.models.dense import Defaults, Dense
from octavo.models.reading import LARGE, MAX_LAYERS, Config, inverse_sqrt, read_layer_types, read_window, require
from octavo.models.rope_reading import read_layered_rope

# Published files leave out most keys, so every size has transformers' default.
_DEFAULTS = Defaults(
    vocab_size=262_208,
    hidden_size=2304,
    intermediate_size=9216,
    num_layers=26,
    num_heads=8,
    num_kv_heads=4,
    head_dim=256,
    max_position=131_072,
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    tie_embeddings=True,
)


def read(config: Config) -> Architecture:
    """Sandwich norms with an offset of one, five sliding layers to one full, a rotation base for each kind.

    `attn_logit_softcapping` is read by transformers too, and used by neither.
    """
    require(config, "use_bidirectional_attention", False, "only causal Gemma 3 models generate text")
    dense = Dense(config, "gemma3", _DEFAULTS)
    shape = dense.shape
    pattern = config.size("sliding_window_pattern", 6, high=MAX_LAYERS)
    default = ["sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(shape.num_layers)]
    types = read_layer_types(config, shape.num_layers, default)
    ropes = read_layered_rope(config, shape.head_dim, shape.max_position, theta=1_000_000.0, local_theta=10_000.0)
    window = read_window(config, 4096)
    bias = config.flag("attention_bias", False)
    scale = inverse_sqrt(config.number("query_pre_attn_scalar", 256.0, low=1e-6, high=LARGE))
    mlp = dense.mlp()

    def layer(index: int) -> Layer:
        attention = dense.attention(
            ropes[types[index]],
            window=window if types[index] == "sliding_attention" else None,
            qkv_bias=bias,
            o_bias=bias,
            qk_norm="head",
            scale=scale,
        )
        return Layer(attention=attention, mlp=mlp, norms="sandwich")

    return dense.architecture(
        layer,
        norm_offset=1.0,
        embedding_multiplier=shape.hidden_size**0.5,
        logits_softcap=config.optional_number("final_logit_softcapping", low=1e-6, high=LARGE),
    )


def read_multimodal(config: Config) -> Architecture:
    """The text model inside a multimodal checkpoint: `text_config`, with the outer file's type and ends."""
    if not config.has("text_config"):
        raise ConfigError(f"{config.where}: text_config is missing; only the text part of Gemma 3 can be served")
    outer = ("dtype", "torch_dtype", "eos_token_id", "tie_word_embeddings")
    inherited = {key: config.data[key] for key in outer if config.has(key)}
    return read(Config({**inherited, **config.child("text_config").data}, f"{config.where}: text_config"))
