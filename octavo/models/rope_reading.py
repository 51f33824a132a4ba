"""Reading the rotation from a config: `rope_theta` with `rope_scaling` (transformers up to 4) or `rope_parameters`
(transformers 5, flat or nested by layer type). No torch."""

from typing import Literal

from msgspec.structs import replace

from octavo.base.errors import ConfigError
from octavo.models.arch import Rope
from octavo.models.reading import MAX_POSITION, Config

Kind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
KINDS: dict[str, Kind] = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",  # longrope's name in the first Phi-3 files
}
_FACTOR = 1e6
_THETA = 1e12


def read_rope(
    config: Config, head_dim: int, max_position: int, *, theta: float = 10_000.0, partial: bool = False
) -> Rope:
    """The one rotation of a model. `theta` is the family's default base; `partial` says whether the family may
    rotate a part of each head only."""
    parameters = rope_parameters(config)
    if parameters.has("full_attention"):  # transformers 5 may nest by layer type even where there is one rotation
        full, sliding = parameters.child("full_attention"), parameters.child("sliding_attention")
        if sliding.data and sliding.data != full.data:
            raise ConfigError(f"{parameters.where}: a rotation for each layer type is not supported by this family")
        parameters = full
    return rope_from(parameters, config, head_dim, max_position, theta=theta, partial=partial)


def read_layered_rope(
    config: Config, head_dim: int, max_position: int, *, theta: float, local_theta: float
) -> dict[str, Rope]:
    """A rotation for each of `full_attention` and `sliding_attention`, which differ in Gemma 3 and OLMo 3.

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


def rope_parameters(config: Config) -> Config:
    """The object that holds the rotation's parameters, whichever its name; empty if there is none."""
    return config.child("rope_parameters" if config.has("rope_parameters") else "rope_scaling")


def rope_from(
    parameters: Config, config: Config, head_dim: int, max_position: int, *, theta: float, partial: bool = False
) -> Rope:
    """A rotation from its own object, falling back on the config's top level for base and partial factor."""
    kind = read_kind(parameters)
    base = _pick(parameters, config, "rope_theta").number("rope_theta", theta, low=1.0, high=_THETA)
    share = _pick(parameters, config, "partial_rotary_factor").number("partial_rotary_factor", 1.0, low=1e-3, high=1.0)
    if share != 1.0 and not partial:
        raise ConfigError(f"{config.where}: partial_rotary_factor = {share:g} is not supported by this family")
    dim = int(head_dim * share)
    if dim < 2 or dim % 2 or (kind == "dynamic" and dim < 4):
        raise ConfigError(f"{config.where}: a head must have an even number of rotated dims, found {dim}")
    plain = Rope(kind=kind, theta=base, dim=dim)
    match kind:
        case "default":
            return plain
        case "linear":
            return replace(plain, factor=_factor(parameters))
        case "dynamic":
            return replace(plain, factor=_factor(parameters), original_max_position=max_position)
        case "llama3":
            return _llama3(plain, parameters, config, max_position)
        case "yarn":
            return _yarn(plain, parameters, config, max_position)
        case "longrope":
            return _longrope(plain, parameters, config, max_position)


def context_length(rope: Rope, max_position: int) -> int:
    """Tokens that a model can take: YaRN's and dynamic's factors stretch what the config states."""
    if rope.kind in ("yarn", "dynamic"):
        return min(MAX_POSITION, max(max_position, int(rope.original_max_position * rope.factor)))
    return max_position


def read_kind(parameters: Config) -> Kind:
    """The rope type; the key was `type` once."""
    key = "rope_type" if parameters.has("rope_type") else "type"
    return parameters.name(key, "rope type", KINDS, "default")


def _llama3(plain: Rope, parameters: Config, config: Config, max_position: int) -> Rope:
    low = parameters.number("low_freq_factor", low=1e-6, high=_FACTOR)
    high = parameters.number("high_freq_factor", low=1e-6, high=_FACTOR)
    if high <= low:
        raise ConfigError(f"{parameters.where}: high_freq_factor must be above low_freq_factor")
    return replace(
        plain,
        factor=_factor(parameters),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=_original(parameters, config, max_position),
    )


def _yarn(plain: Rope, parameters: Config, config: Config, max_position: int) -> Rope:
    original = _original(parameters, config, max_position)
    factor = _factor(parameters, default=max(1.0, max_position / original))
    return replace(
        plain,
        factor=factor,
        original_max_position=original,
        beta_fast=parameters.number("beta_fast", 32.0, low=1e-6, high=_FACTOR),
        beta_slow=parameters.number("beta_slow", 1.0, low=1e-6, high=_FACTOR),
        mscale=parameters.number("mscale", 0.0, low=0.0, high=_FACTOR),
        mscale_all_dim=parameters.number("mscale_all_dim", 0.0, low=0.0, high=_FACTOR),
        attention_factor=parameters.optional_number("attention_factor", low=0.0, high=_FACTOR),
        truncate=parameters.flag("truncate", True),
    )


def _longrope(plain: Rope, parameters: Config, config: Config, max_position: int) -> Rope:
    original = _original(parameters, config, max_position)
    length = plain.dim // 2
    return replace(
        plain,
        factor=parameters.number("factor", max_position / original, low=1e-6, high=_FACTOR),
        original_max_position=original,
        attention_factor=parameters.optional_number("attention_factor", low=0.0, high=_FACTOR),
        short_factor=parameters.numbers("short_factor", length, low=1e-6, high=_FACTOR),
        long_factor=parameters.numbers("long_factor", length, low=1e-6, high=_FACTOR),
    )


def _factor(parameters: Config, default: float | None = None) -> float:
    return parameters.number("factor", default, low=1.0, high=_FACTOR)


def _original(parameters: Config, config: Config, max_position: int) -> int:
    """Context of the first training; a top-level value (Phi-3) goes first, as in transformers."""
    key = "original_max_position_embeddings"
    place = config if config.has(key) else parameters
    return place.integer(key, max_position, low=2, high=MAX_POSITION)


def _pick(parameters: Config, config: Config, key: str) -> Config:
    return parameters if parameters.has(key) else config
