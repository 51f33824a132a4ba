"""Mistral 7B and its kin."""

from octavo.models.arch import Architecture, Layer
from octavo.models.dense import Defaults, Dense
from octavo.models.reading import Config, read_layer_types, read_window


def read(config: Config) -> Architecture:
    """Llama's shape with a sliding window in every layer, where the config states one (or says nothing: 4096)."""
    dense = Dense(config, "mistral", Defaults(max_position=131_072, num_kv_heads=8))
    window = read_window(config, 4096)
    types = read_layer_types(config, dense.shape.num_layers, ["sliding_attention"] * dense.shape.num_layers)
    mlp = dense.mlp()

    def layer(index: int) -> Layer:
        seen = window if types[index] == "sliding_attention" else None
        return Layer(attention=dense.attention(dense.rope, window=seen), mlp=mlp)

    return dense.architecture(layer)
