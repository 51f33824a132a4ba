"""Rotations that differ between sliding and full layers (Gemma 3, OLMo 3). No torch."""

from octavo.models.arch import Rope
from octavo.models.reading import Config
from octavo.models.rope_reading import rope_from


def read_layered_rope(
    config: Config, head_dim: int, max_position: int, *, theta: float, local_theta: float
) -> dict[str, Rope]:
    """A rotation for each of `full_attention` and `sliding_attention`.

    transformers 5 nests `rope_parameters` by layer type. Older files state `rope_theta` for full layers,
    `rope_local_base_freq` for sliding ones, and a `rope_scaling` that applies to full layers only.
    """
    nested = config.child("rope_parameters")
    full, sliding = nested.child("full_attention"), nested.child("sliding_attention")
    if not full.data and not sliding.data:
        flat = nested if nested.data else config.child("rope_scaling")
        full = flat
        sliding = Config(
            {"rope_theta": config.data["rope_local_base_freq"]} if config.has("rope_local_base_freq") else {}
        )
    bare = Config({}, config.where)  # bases must not leak from the top level into sliding layers
    return {
        "full_attention": rope_from(full, config, head_dim, max_position, theta=theta),
        "sliding_attention": rope_from(sliding, bare, head_dim, max_position, theta=local_theta),
    }
