"""Qwen 2 and 2.5."""

from collections.abc import Callable

from octavo.models.arch import Architecture, Layer
from octavo.models.dense import Defaults, Dense
from octavo.models.reading import MAX_LAYERS, Config, read_layer_types, read_window


def read(config: Config) -> Architecture:
    """Llama's shape with biases on q, k and v, and a sliding window in the upper layers if asked for."""
    dense = Dense(config, "qwen2", Defaults(max_position=32_768))
    window = layer_window(config, dense.shape.num_layers)
    mlp = dense.mlp()

    def layer(index: int) -> Layer:
        return Layer(attention=dense.attention(dense.rope, window=window(index), qkv_bias=True), mlp=mlp)

    return dense.architecture(layer)


def layer_window(config: Config, num_layers: int) -> Callable[[int], int | None]:
    """Each layer's window. `use_sliding_window` switches windows on, from layer `max_window_layers` up or as
    `layer_types` says."""
    window = read_window(config, 4096) if config.flag("use_sliding_window", False) else None
    full = config.integer("max_window_layers", 28, low=0, high=MAX_LAYERS)
    default = ["sliding_attention" if index >= full else "full_attention" for index in range(num_layers)]
    types = read_layer_types(config, num_layers, default)
    return lambda index: window if types[index] == "sliding_attention" else None
