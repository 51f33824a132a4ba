"""Granite 3, dense."""

from octavo.models.arch import Architecture, Layer
from octavo.models.dense import Defaults, Dense
from octavo.models.reading import LARGE, Config


def read(config: Config) -> Architecture:
    """Llama's shape with four multipliers: on embeddings, attention scores, residual additions and logits."""
    dense = Dense(config, "granite", Defaults())
    bias = config.flag("attention_bias", False)
    scale = config.number("attention_multiplier", 1.0, low=1e-9, high=LARGE)
    layer = Layer(
        attention=dense.attention(dense.rope, qkv_bias=bias, o_bias=bias, scale=scale),
        mlp=dense.mlp(bias=config.flag("mlp_bias", False)),
        residual_multiplier=config.number("residual_multiplier", 1.0, low=0.0, high=LARGE),
    )
    return dense.architecture(
        lambda _: layer,
        embedding_multiplier=config.number("embedding_multiplier", 1.0, low=0.0, high=LARGE),
        logits_divisor=config.number("logits_scaling", 1.0, low=1e-9, high=LARGE),
    )
