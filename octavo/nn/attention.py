"""The attention half of a layer, over the paged cache."""

import torch
from torch import Tensor, nn

from octavo.kernels.context import AttentionMeta, ForwardContext, Projected
from octavo.models.arch import Attention as Heads
from octavo.nn.kit import Kit
from octavo.nn.linear import Linear
from octavo.nn.norm import RmsNorm


class Attention(nn.Module):
    """``[T, (H + 2 H_kv) D] -> [T, E]``: from q, k and v, which are one product, to the output projection.

    The layer itself calls `qkv`, so that the norm before it can be part of that product.
    """

    def __init__(
        self, layer: int, hidden_size: int, heads: Heads, norm_eps: float, norm_offset: float, kit: Kit
    ) -> None:
        super().__init__()
        self.layer = layer
        self.heads = heads
        self.norm_eps = norm_eps
        self.ops = kit.ops
        self.q_size = heads.num_heads * heads.head_dim
        self.kv_size = heads.num_kv_heads * heads.head_dim
        self.qkv = Linear(hidden_size, (self.q_size, self.kv_size, self.kv_size), heads.qkv_bias, kit)
        self.o = Linear(self.q_size, (hidden_size,), heads.o_bias, kit)
        self.q_norm: RmsNorm | None = None
        self.k_norm: RmsNorm | None = None
        if heads.qk_norm != "none":
            whole = heads.qk_norm == "full"
            q_size, k_size = (self.q_size, self.kv_size) if whole else (heads.head_dim, heads.head_dim)
            self.q_norm = RmsNorm(q_size, norm_eps, norm_offset, kit)
            self.k_norm = RmsNorm(k_size, norm_eps, norm_offset, kit)

    def forward(
        self,
        qkv: Tensor,
        cos_sin: Tensor | None,
        rope_index: Tensor | None,
        ctx: ForwardContext,
        *,
        parts: bool = False,
    ) -> Tensor:
        """`parts`: a norm follows, which takes the result in parts (kernels/ops.LinearParts)."""
        heads = self.heads
        meta, kv = ctx.attention(self.layer)
        per_head: tuple[Tensor | None, Tensor | None] = (None, None)
        if self.q_norm is not None and self.k_norm is not None:
            if heads.qk_norm == "full":
                qkv = self._norm_whole(qkv, self.q_norm, self.k_norm)
            else:
                per_head = (self.q_norm.weight, self.k_norm.weight)
        projected = Projected(
            qkv,
            *per_head,
            self.norm_eps,
            cos_sin,
            rope_index,
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
        )
        out = self._attend(projected, kv, meta).view(-1, self.q_size)
        result: Tensor = self.o.before_norm(out) if parts else self.o(out)
        return result

    def _attend(self, projected: Projected, kv: Tensor, meta: AttentionMeta) -> Tensor:
        rules = self.heads.scale, self.heads.window, self.heads.softcap
        if self.ops.self_attention is not None:
            return self.ops.self_attention(projected, kv, meta, *rules)
        return self.ops.paged_attention(self.ops.qkv_prologue(projected, kv, meta), kv, meta, *rules)

    def _norm_whole(self, qkv: Tensor, q_norm: RmsNorm, k_norm: RmsNorm) -> Tensor:
        """Norm over all heads together (OLMo 2)."""
        q, k = qkv[:, : self.q_size], qkv[:, self.q_size : self.q_size + self.kv_size]
        return torch.cat((q_norm(q), k_norm(k), qkv[:, self.q_size + self.kv_size :]), dim=-1)
