"""Architecture: everything that distinguishes one decoder-only model from another, as data. No torch.

A family file reads a config.json into this; models/decoder.py builds the module from it; the planner takes
its KV needs and parameter count from it before any weight is read.
"""

from typing import Literal

from msgspec import Struct

from octavo.base.specs import KVSpec

Activation = Literal["silu", "gelu_tanh", "gelu"]
NormPlace = Literal["pre", "sandwich", "post"]
NORMS: dict[NormPlace, tuple[str | None, str | None, str | None, str | None]] = {
    "pre": ("input_layernorm", None, "post_attention_layernorm", None),
    "sandwich": (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    "post": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
}
"""Norms before and after attention, before and after the feed-forward half, by the names that checkpoints use."""


class Rope(Struct, frozen=True, kw_only=True):
    """Rotary embedding (Su et al. 2021) and its context extensions; `kind` names the HF rope_type."""

    kind: Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"] = "default"
    theta: float = 10_000.0
    dim: int  # rotated dims of each head; the rest pass through
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


class Attention(Struct, frozen=True, kw_only=True):
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float  # multiplies q.k
    rope: Rope | None  # None: no position at all (NoPE layers)
    window: int | None = None  # tokens seen, the current one included
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"  # per head (Qwen3, Gemma 3) or over all heads (OLMo 2)
    softcap: float | None = None


class Mlp(Struct, frozen=True, kw_only=True):
    intermediate_size: int
    activation: Activation = "silu"
    bias: bool = False


class Layer(Struct, frozen=True, kw_only=True):
    attention: Attention
    mlp: Mlp
    norms: NormPlace = "pre"  # before each half; before and after (Gemma 3); after only (OLMo 2)
    residual_multiplier: float = 1.0


class Architecture(Struct, frozen=True, kw_only=True):
    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[Layer, ...]
    max_position: int  # tokens of the longest context, what a rope extension adds included
    dtype: str  # the checkpoint's
    norm_eps: float
    norm_offset: float = 0.0  # 1.0: the weight is stored as its distance from one (Gemma)
    embedding_multiplier: float = 1.0
    logits_divisor: float = 1.0
    logits_softcap: float | None = None
    tie_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()

    @property
    def query_group(self) -> int:
        """Most query heads of a layer that share a KV head."""
        return max(layer.attention.num_heads // layer.attention.num_kv_heads for layer in self.layers)

    def kv_specs(self) -> list[KVSpec]:
        """One a layer, in order."""
        return [
            KVSpec(layer.attention.num_kv_heads, layer.attention.head_dim, layer.attention.window)
            for layer in self.layers
        ]

    @property
    def rope_switch(self) -> int | None:
        """Prompt length above which the rotation depends on it (dynamic, longrope); None: it never does.

        Such a model needs ``ForwardContext.prompt_lens``, and blocks are shared only among equal `rope_salt`s.
        """
        lengths = [rope.original_max_position for rope in self.ropes() if rope.kind in ("dynamic", "longrope")]
        return min(lengths) if lengths else None

    def rope_salt(self, num_prompt: int) -> str:
        """What to add to the prefix-cache salt of a request with this many prompt tokens; mostly nothing."""
        salts = []
        for rope in self.ropes():
            if num_prompt > rope.original_max_position and rope.kind == "longrope":
                salts.append("longrope")
            elif num_prompt > rope.original_max_position and rope.kind == "dynamic":
                salts.append(f"dynamic{num_prompt}")
        return "+".join(salts)

    def ropes(self) -> list[Rope]:
        """The different rotations among the layers, in order of first use."""
        return list(dict.fromkeys(layer.attention.rope for layer in self.layers if layer.attention.rope))

    def num_parameters(self) -> int:
        """Weights that a decode step reads or looks up; a tied table counts once."""
        hidden = self.hidden_size
        total = self.vocab_size * hidden * (1 if self.tie_embeddings else 2) + hidden
        for layer in self.layers:
            attention = layer.attention
            q = attention.num_heads * attention.head_dim
            kv = attention.num_kv_heads * attention.head_dim
            total += hidden * (q + 2 * kv) + q * hidden + 3 * hidden * layer.mlp.intermediate_size
            total += hidden * (4 if layer.norms == "sandwich" else 2)
            if attention.qkv_bias:
                total += q + 2 * kv
            if attention.qk_norm == "head":
                total += 2 * attention.head_dim
            elif attention.qk_norm == "full":
                total += q + kv
        return total
