"""What the dense families have in common: the reader of a Llama-shaped config. No torch."""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from octavo.models.arch import Architecture, Attention, Layer, Mlp, Rope
from octavo.models.reading import (
    Config,
    inverse_sqrt,
    read_activation,
    read_dtype,
    read_eos,
    read_eps,
    read_heads,
    read_max_position,
    read_num_layers,
    read_vocab_size,
)
from octavo.models.rope_reading import context_length, read_rope


class Defaults(Struct, frozen=True, kw_only=True):
    """What a family takes for keys that a config leaves out; the values of transformers' config classes."""

    vocab_size: int | None = None  # None: the config must say it
    hidden_size: int | None = None
    intermediate_size: int | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    activation: tuple[str, str] = ("hidden_act", "silu")  # key and value
    max_position: int = 2048
    norm_eps: float = 1e-6
    num_kv_heads: int | None = None
    head_dim: int | None = None
    theta: float = 10_000.0
    tie_embeddings: bool = False
    partial_rotary: bool = False


class Shape(Struct, frozen=True, kw_only=True):
    """The sizes of a Llama-shaped model, read and checked."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int


def read_shape(config: Config, defaults: Defaults) -> Shape:
    hidden = config.size("hidden_size", defaults.hidden_size)
    heads, kv_heads, dim = read_heads(config, hidden, defaults.num_heads, defaults.num_kv_heads, defaults.head_dim)
    return Shape(
        vocab_size=read_vocab_size(config, defaults.vocab_size),
        hidden_size=hidden,
        num_layers=read_num_layers(config, defaults.num_layers),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        max_position=read_max_position(config, defaults.max_position),
    )


class Dense:
    """One reading of a Llama-shaped config; a family file states only its differences."""

    def __init__(self, config: Config, family: str, defaults: Defaults) -> None:
        self.config = config
        self.family = family
        self.defaults = defaults
        self.shape = read_shape(config, defaults)
        self._rope: Rope | None = None

    @property
    def rope(self) -> Rope:
        """The model's one rotation."""
        if self._rope is None:
            self._rope = read_rope(
                self.config,
                self.shape.head_dim,
                self.shape.max_position,
                theta=self.defaults.theta,
                partial=self.defaults.partial_rotary,
            )
        return self._rope

    def attention(
        self,
        rope: Rope | None,
        *,
        window: int | None = None,
        qkv_bias: bool = False,
        o_bias: bool = False,
        qk_norm: Literal["none", "head", "full"] = "none",
        scale: float | None = None,
    ) -> Attention:
        """One layer's attention; the scale is one over the root of the head dim unless given.

        A window as long as the context hides nothing, and is dropped (Phi-4 mini states one).
        """
        shape = self.shape
        if window is not None and rope is not None and window >= context_length(rope, shape.max_position):
            window = None
        return Attention(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            scale=inverse_sqrt(shape.head_dim) if scale is None else scale,
            rope=rope,
            window=window,
            qkv_bias=qkv_bias,
            o_bias=o_bias,
            qk_norm=qk_norm,
        )

    def mlp(self, *, bias: bool = False) -> Mlp:
        return Mlp(
            intermediate_size=self.config.size("intermediate_size", self.defaults.intermediate_size),
            activation=read_activation(self.config, *self.defaults.activation),
            bias=bias,
        )

    def architecture(self, layer: Callable[[int], Layer], **extra: Any) -> Architecture:
        """The whole, from a function that gives each layer; `extra` are fields of Architecture."""
        config, shape = self.config, self.shape
        layers = tuple(layer(index) for index in range(shape.num_layers))
        # A layer with a window knows distances within it only, so it bounds the context no further.
        far = [item.attention for item in layers if item.attention.window is None] or [
            item.attention for item in layers
        ]
        ropes = [attention.rope for attention in far if attention.rope is not None]
        return Architecture(
            family=self.family,
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            layers=layers,
            max_position=min((context_length(rope, shape.max_position) for rope in ropes), default=shape.max_position),
            dtype=read_dtype(config),
            norm_eps=read_eps(config, self.defaults.norm_eps),
            tie_embeddings=config.flag("tie_word_embeddings", self.defaults.tie_embeddings),
            eos_token_ids=read_eos(config, shape.vocab_size),
            **extra,
        )
