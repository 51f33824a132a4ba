"""ForwardContext: what a forward pass knows besides token ids. Passed explicitly; models only hand it on.

Legend: T tokens of the step, R rows of the step, N blocks of the pool, H heads, B block size, D head dim.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class AttentionMeta:
    """The step as one KV group sees it. All tensors int32 on the device unless said otherwise."""

    block_table: torch.Tensor  # [R, max_blocks]; places behind a sliding window may hold anything
    slots: torch.Tensor  # [T] int64, block * block_size + offset; where each token's K and V go
    query_start: torch.Tensor  # [R + 1], offsets of the rows in T
    seq_lens: torch.Tensor  # [R], computed tokens after this step
    positions: torch.Tensor  # [T] int64
    block_size: int
    num_rows: int
    query_lens: list[int]  # the lengths as host numbers, one a row; they let plain code loop without a wait
    seq_lens_host: list[int]
    scratch: dict[str, object] = field(default_factory=dict)  # a backend's per-step plan


@dataclass(frozen=True, slots=True)
class Projected:
    """Queries, keys and values of one layer as their product leaves them, and what turns them into heads.

    qkv ``[T, (H + 2 H_kv) D]``; norms ``[D]`` or None; cos_sin ``[rows, rotary_dim]`` fp32, cosines then sines of half
    the rotary dims each (neox pairing: i with i + rotary_dim / 2), or None for no rotation; rope_index ``[T]`` int64,
    the row of cos_sin for each token (its position, for most models).
    """

    qkv: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    eps: float
    cos_sin: torch.Tensor | None
    rope_index: torch.Tensor | None
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Said:
    """What S rows have said, and how it is held against them. The last four are of one stride."""

    lines: torch.Tensor  # [rows, places] int32, tokens in order
    rows: torch.Tensor  # [S] int64, which line
    lengths: torch.Tensor  # [S] int64, known tokens, the newest among them
    num_prompt: torch.Tensor  # [S] int32, of which are the prompt's
    repetition: torch.Tensor  # [S] fp32, 1: none
    frequency: torch.Tensor  # [S] fp32, 0: none
    presence: torch.Tensor  # [S] fp32, 0: none


@dataclass(frozen=True, slots=True)
class Norm:
    """``rms_norm(x + residual)`` before a product; weight ``[E]``, residual ``[T, E]`` or None."""

    weight: torch.Tensor
    eps: float
    residual: torch.Tensor | None


@dataclass(slots=True)
class ForwardContext:
    groups: list[AttentionMeta]  # one a KV group
    layer_group: list[int]  # layer -> index into groups
    kv: list[torch.Tensor]  # layer -> [N, 2, H_kv, B, D], a strided view into the pool
    prompt_lens: torch.Tensor | None = (
        None  # [T] int64, prompt length of each token's request; see Architecture.rope_switch
    )
    before_layer: Callable[[int], None] | None = None  # told of each layer that begins

    def attention(self, layer: int) -> tuple[AttentionMeta, torch.Tensor]:
        return self.groups[self.layer_group[layer]], self.kv[layer]
