"""Decoder layers. A block takes and gives the pair (x, residual), whose sum is the hidden state, so that each
norm is fused with the addition before it. A residual of None counts as zero."""

from abc import abstractmethod

from torch import Tensor, nn

from octavo.kernels.context import ForwardContext
from octavo.models.arch import NORMS, Architecture
from octavo.nn.attention import Attention
from octavo.nn.kit import Kit
from octavo.nn.mlp import GatedMlp
from octavo.nn.norm import RmsNorm

Angles = tuple[Tensor | None, Tensor | None]  # cos_sin, rope_index


class Block(nn.Module):
    """One layer: attention and a feed-forward half. Subclasses apply the norms that models/arch.NORMS places."""

    def __init__(self, arch: Architecture, index: int, kit: Kit) -> None:
        super().__init__()
        layer = arch.layers[index]
        self.residual_multiplier = layer.residual_multiplier
        self.attention = Attention(index, arch.hidden_size, layer.attention, arch.norm_eps, arch.norm_offset, kit)
        self.mlp = GatedMlp(arch.hidden_size, layer.mlp, kit)
        self.norms = nn.ModuleDict(
            {
                name: RmsNorm(arch.hidden_size, arch.norm_eps, arch.norm_offset, kit)
                for name in filter(None, NORMS[layer.norms])
            }
        )

    @abstractmethod
    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, ctx: ForwardContext) -> tuple[Tensor, Tensor]:
        """``[T, E], [T, E] or None -> [T, E], [T, E]``."""

    def norm(self, name: str) -> RmsNorm:
        norm = self.norms[name]
        assert isinstance(norm, RmsNorm)
        return norm

    def scaled(self, x: Tensor) -> Tensor:
        """A half's output as the residual stream takes it (Granite)."""
        return x if self.residual_multiplier == 1.0 else x * self.residual_multiplier


class PreNormBlock(Block):
    """A norm before each half: nearly everybody."""

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, ctx: ForwardContext) -> tuple[Tensor, Tensor]:
        parts = self.residual_multiplier == 1.0  # each half ends before a norm
        qkv, residual = self.attention.qkv.after_norm(self.norm("input_layernorm"), x, residual)
        x = self.scaled(self.attention(qkv, *angles, ctx, parts=parts))
        x, residual = self.mlp.after_norm(self.norm("post_attention_layernorm"), x, residual, parts=parts)
        return self.scaled(x), residual


class SandwichBlock(Block):
    """A norm before and after each half: Gemma 2 and 3."""

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, ctx: ForwardContext) -> tuple[Tensor, Tensor]:
        qkv, residual = self.attention.qkv.after_norm(self.norm("input_layernorm"), x, residual)
        x = self.norm("post_attention_layernorm")(self.attention(qkv, *angles, ctx))
        x, residual = self.mlp.after_norm(self.norm("pre_feedforward_layernorm"), self.scaled(x), residual)
        return self.scaled(self.norm("post_feedforward_layernorm")(x)), residual


class PostNormBlock(Block):
    """A norm after each half only: OLMo 2 and 3."""

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, ctx: ForwardContext) -> tuple[Tensor, Tensor]:
        residual = x if residual is None else x + residual
        x = self.norm("post_attention_layernorm")(self.attention(self.attention.qkv(residual), *angles, ctx))
        residual = residual + self.scaled(x)
        x = self.norm("post_feedforward_layernorm")(self.mlp(residual))
        return self.scaled(x), residual


BLOCKS: dict[str, type[Block]] = {"pre": PreNormBlock, "sandwich": SandwichBlock, "post": PostNormBlock}
