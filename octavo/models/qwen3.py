"""Qwen 3, dense."""

from octavo.models.arch import Architecture, Layer
from octavo.models.dense import Defaults, Dense
from octavo.models.qwen2 import layer_window
from octavo.models.reading import Config


def read(config: Config) -> Architecture:
    """Qwen 2 without biases, with a norm over each head of q and k, and a head dim of its own."""
    dense = Dense(config, "qwen3", Defaults(max_position=32_768, head_dim=128))
    window = layer_window(config, dense.shape.num_layers)
    bias = config.flag("attention_bias", False)
    mlp = dense.mlp()

    def layer(index: int) -> Layer:
        attention = dense.attention(dense.rope, window=window(index), qkv_bias=bias, o_bias=bias, qk_norm="head")
        return Layer(attention=attention, mlp=mlp)

    return dense.architecture(layer)
