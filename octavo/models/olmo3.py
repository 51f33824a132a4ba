"""OLMo 3."""

from octavo.models.arch import Architecture, Layer
from octavo.models.dense import Defaults, Dense
from octavo.models.reading import Config, read_layer_types, read_window
from octavo.models.rope_reading import read_layered_rope


def read(config: Config) -> Architecture:
    """OLMo 2 with a sliding window in three layers of four; a rope extension applies to the full layers only."""
    dense = Dense(config, "olmo3", Defaults(norm_eps=1e-5, theta=500_000.0))
    shape = dense.shape
    pattern = ["full_attention" if (index + 1) % 4 == 0 else "sliding_attention" for index in range(shape.num_layers)]
    types = read_layer_types(config, shape.num_layers, pattern)
    ropes = read_layered_rope(config, shape.head_dim, shape.max_position, theta=500_000.0, local_theta=500_000.0)
    window = read_window(config, 4096)
    bias = config.flag("attention_bias", False)
    mlp = dense.mlp()

    def layer(index: int) -> Layer:
        attention = dense.attention(
            ropes[types[index]],
            window=window if types[index] == "sliding_attention" else None,
            qkv_bias=bias,
            o_bias=bias,
            qk_norm="full",
        )
        return Layer(attention=attention, mlp=mlp, norms="post")

    return dense.architecture(layer)
