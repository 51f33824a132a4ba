"""Llama 2, 3, 3.1 to 3.3, and the many models of the same shape."""

from octavo.models.arch import Architecture, Layer
from octavo.models.dense import Defaults, Dense
from octavo.models.reading import Config


def read(config: Config) -> Architecture:
    """Llama: plain pre-norm, grouped heads, one rotation (llama3, linear, dynamic or yarn extensions)."""
    dense = Dense(config, "llama", Defaults())
    bias = config.flag("attention_bias", False)
    layer = Layer(
        attention=dense.attention(dense.rope, qkv_bias=bias, o_bias=bias),
        mlp=dense.mlp(bias=config.flag("mlp_bias", False)),
    )
    return dense.architecture(lambda _: layer)
