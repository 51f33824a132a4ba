"""Gemma 3: the text models, and the text half of the multimodal ones (images are refused by the API)."""

from octavo.base.errors import ConfigError
from octavo.models.arch import Architecture, Attention, Layer, Mlp
from octavo.models.layered_rope import read_layered_rope
from octavo.models.reading import (
    MAX_LAYERS,
    Config,
    inverse_sqrt,
    read_activation,
    read_dtype,
    read_eos,
    read_eps,
    read_heads,
    read_layer_types,
    read_max_position,
    read_num_layers,
    read_token_id,
    read_vocab_size,
    read_window,
    require,
)
from octavo.models.rope_reading import context_length

_LARGE = 1e6


def read(config: Config) -> Architecture:
    """Sandwich norms with an offset of one, five sliding layers to one full, a rotation base for each kind.

    Published files leave out most keys, so every size has transformers' default. `attn_logit_softcapping` is read by
    transformers too, and used by neither.
    """
    require(config, "use_bidirectional_attention", False, "only causal Gemma 3 models generate text")
    hidden = config.size("hidden_size", 2304)
    vocab_size = read_vocab_size(config, 262_208)
    max_position = read_max_position(config, 131_072)
    count = read_num_layers(config, 26)
    heads, kv_heads, dim = read_heads(config, hidden, num_heads=8, num_kv_heads=4, head_dim=256)
    pattern = config.size("sliding_window_pattern", 6, high=MAX_LAYERS)
    default = ["sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(count)]
    types = read_layer_types(config, count, default)
    ropes = read_layered_rope(config, dim, max_position, theta=1_000_000.0, local_theta=10_000.0)
    window = read_window(config, 4096)
    bias = config.flag("attention_bias", False)
    mlp = Mlp(
        intermediate_size=config.size("intermediate_size", 9216),
        activation=read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
    )

    def layer(index: int) -> Layer:
        attention = Attention(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=dim,
            scale=inverse_sqrt(config.number("query_pre_attn_scalar", 256.0, low=1e-6, high=_LARGE)),
            rope=ropes[types[index]],
            window=window if types[index] == "sliding_attention" else None,
            qkv_bias=bias,
            o_bias=bias,
            qk_norm="head",
        )
        return Layer(attention=attention, mlp=mlp, norms="sandwich")

    return Architecture(
        family="gemma3",
        vocab_size=vocab_size,
        hidden_size=hidden,
        layers=tuple(layer(index) for index in range(count)),
        max_position=context_length(ropes["full_attention"], max_position),
        dtype=read_dtype(config),
        norm_eps=read_eps(config, 1e-6),
        norm_offset=1.0,
        embedding_multiplier=hidden**0.5,
        logits_softcap=config.optional_number("final_logit_softcapping", low=1e-6, high=_LARGE),
        tie_embeddings=config.flag("tie_word_embeddings", True),
        bos_token_id=read_token_id(config, "bos_token_id", vocab_size),
        eos_token_ids=read_eos(config, vocab_size),
    )


def read_multimodal(config: Config) -> Architecture:
    """The text model inside a multimodal checkpoint: `text_config`, with the outer file's type and token ids."""
    if not config.has("text_config"):
        raise ConfigError(f"{config.where}: text_config is missing; only the text part of Gemma 3 can be served")
    outer = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "tie_word_embeddings")
    inherited = {key: config.data[key] for key in outer if config.has(key)}
    return read(Config({**inherited, **config.child("text_config").data}, f"{config.where}: text_config"))
