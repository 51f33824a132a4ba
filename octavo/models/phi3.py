"""Phi-3 mini and medium, Phi-3.5 mini, Phi-4 mini."""

from octavo.base.errors import ConfigError
from octavo.models.arch import Architecture, Layer
from octavo.models.dense import Defaults, Dense
from octavo.models.reading import Config, read_window
from octavo.models.rope_reading import rope_from, rope_parameters


def read(config: Config) -> Architecture:
    """Llama's shape with fused qkv and gate-up matrices, partial rotation and LongRoPE."""
    dense = Dense(config, "phi3", Defaults(max_position=4096, norm_eps=1e-5, partial_rotary=True))
    parameters = rope_parameters(config)
    if parameters.data.get("rope_type", parameters.data.get("type")) == "yarn":
        # The first Phi-3 files said yarn and meant longrope.
        parameters = Config({**parameters.data, "rope_type": "longrope"}, parameters.where)
    original = {"original_max_position_embeddings": 4096, **config.data}  # a default of the family's
    rope = rope_from(
        parameters,
        Config(original, config.where),
        dense.shape.head_dim,
        dense.shape.max_position,
        theta=10_000.0,
        partial=True,
    )
    if rope.kind not in ("default", "longrope"):
        raise ConfigError(f"{config.where}: rope type {rope.kind!r} is not supported by Phi-3; use longrope")
    layer = Layer(attention=dense.attention(rope, window=read_window(config)), mlp=dense.mlp())
    return dense.architecture(lambda _: layer)
