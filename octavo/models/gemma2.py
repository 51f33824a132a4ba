"""Gemma 2."""

from msgspec.structs import replace

from octavo.models.arch import Architecture, Layer
from octavo.models.dense import Defaults, Dense
from octavo.models.reading import LARGE, Config, inverse_sqrt, read_layer_types, read_window, require

_DEFAULTS = Defaults(
    max_position=8192,
    num_kv_heads=4,
    head_dim=256,
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    tie_embeddings=True,
)


def read(config: Config) -> Architecture:
    """Sandwich norms with an offset of one, soft-capped scores and logits, a sliding window in every other layer."""
    require(config, "use_bidirectional_attention", False, "only causal Gemma 2 models generate text")
    dense = Dense(config, "gemma2", _DEFAULTS)
    shape = dense.shape
    pattern = ["sliding_attention" if index % 2 == 0 else "full_attention" for index in range(shape.num_layers)]
    types = read_layer_types(config, shape.num_layers, pattern)
    window = read_window(config, 4096)
    bias = config.flag("attention_bias", False)
    scale = inverse_sqrt(config.number("query_pre_attn_scalar", 256.0, low=1e-6, high=LARGE))
    softcap = _softcap(config, "attn_logit_softcapping", 50.0)
    mlp = dense.mlp()

    def layer(index: int) -> Layer:
        attention = dense.attention(
            dense.rope,
            window=window if types[index] == "sliding_attention" else None,
            qkv_bias=bias,
            o_bias=bias,
            scale=scale,
        )
        return Layer(attention=replace(attention, softcap=softcap), mlp=mlp, norms="sandwich")

    return dense.architecture(
        layer,
        norm_offset=1.0,
        embedding_multiplier=shape.hidden_size**0.5,
        logits_softcap=_softcap(config, "final_logit_softcapping", 30.0),
    )


def _softcap(config: Config, key: str, default: float) -> float | None:
    """A cap; null, stated, means none."""
    if key in config.data and config.data[key] is None:
        return None
    return config.number(key, default, low=1e-6, high=LARGE)
