"""OLMo 2."""

from octavo.models.arch import Architecture, Layer
from octavo.models.dense import Defaults, Dense
from octavo.models.reading import Config


def read(config: Config) -> Architecture:
    """Norms after each half instead of before, and one norm over all heads of q and of k."""
    dense = Dense(config, "olmo2", Defaults(norm_eps=1e-5))
    bias = config.flag("attention_bias", False)
    layer = Layer(
        attention=dense.attention(dense.rope, qkv_bias=bias, o_bias=bias, qk_norm="full"),
        mlp=dense.mlp(),
        norms="post",
    )
    return dense.architecture(lambda _: layer)
