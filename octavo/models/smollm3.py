"""SmolLM3."""

from octavo.models.arch import Architecture, Layer
from octavo.models.dense import Defaults, Dense
from octavo.models.reading import MAX_LAYERS, Config, read_layer_types, read_window


def read(config: Config) -> Architecture:
    """Llama's shape; every fourth layer has no rotation at all (NoPE), or those with 0 in `no_rope_layers`."""
    dense = Dense(
        config, "smollm3", Defaults(max_position=32_768, num_kv_heads=4, theta=2_000_000.0, tie_embeddings=True)
    )
    count = dense.shape.num_layers
    rotated = _rotated(config, count)
    window = read_window(config) if config.flag("use_sliding_window", False) else None
    types = read_layer_types(config, count, ["full_attention" if turn else "sliding_attention" for turn in rotated])
    bias = config.flag("attention_bias", False)
    mlp = dense.mlp(bias=config.flag("mlp_bias", False))

    def layer(index: int) -> Layer:
        attention = dense.attention(
            dense.rope if rotated[index] else None,
            window=window if types[index] == "sliding_attention" else None,
            qkv_bias=bias,
            o_bias=bias,
        )
        return Layer(attention=attention, mlp=mlp)

    return dense.architecture(layer)


def _rotated(config: Config, count: int) -> list[bool]:
    """Which layers rotate: 1 in `no_rope_layers` means that they do, whatever its name says."""
    value = config.data.get("no_rope_layers")
    if value is None:
        interval = config.size("no_rope_layer_interval", 4, high=MAX_LAYERS)
        return [(index + 1) % interval != 0 for index in range(count)]
    if not isinstance(value, list) or len(value) < count or not all(item in (0, 1) for item in value):
        raise config.wrong("no_rope_layers", f"a list of {count} zeros and ones")
    return [bool(item) for item in value[:count]]
