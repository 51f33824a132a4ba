"""The decoder that any Architecture describes."""

from functools import partial

import torch
from torch import Tensor, nn

from octavo.kernels.context import ForwardContext
from octavo.kernels.ops import Ops
from octavo.models.arch import Architecture
from octavo.models.blocks import BLOCKS, Angles, Block
from octavo.models.rotary import Rotary
from octavo.models.weight_map import head_targets, layer_targets
from octavo.nn.embed import Embedding, Head
from octavo.nn.kit import Kit
from octavo.nn.linear import Linear
from octavo.nn.norm import RmsNorm
from octavo.nn.quant.base import Empty, QuantMethod
from octavo.nn.quant.plain import Plain
from octavo.weights.load import Target


class Decoder(nn.Module):
    """Embedding, layers, norm and head. Weights are unset until `weights.load.load_weights` has filled `targets`."""

    def __init__(self, arch: Architecture, kit: Kit, max_position: int) -> None:
        super().__init__()
        self.arch = arch
        self.embedding = Embedding(
            arch.vocab_size, arch.hidden_size, arch.embedding_multiplier, arch.tie_embeddings, kit
        )
        self.blocks: list[Block] = [BLOCKS[layer.norms](arch, index, kit) for index, layer in enumerate(arch.layers)]
        self.layers = nn.ModuleList(self.blocks)
        self.norm = RmsNorm(arch.hidden_size, arch.norm_eps, arch.norm_offset, kit)
        linear = None if arch.tie_embeddings else Linear(arch.hidden_size, (arch.vocab_size,), False, kit)
        self.head = Head(self.embedding, linear, arch.logits_divisor, arch.logits_softcap, kit)
        ropes = arch.ropes()
        self.rotaries = [Rotary(rope, max_position, kit.device) for rope in ropes]
        self.layer_rope = [
            None if layer.attention.rope is None else ropes.index(layer.attention.rope) for layer in arch.layers
        ]

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """Hidden states after the last norm: ``[T] int64, [T] int64 -> [T, E]``. Writes this step's K and V."""
        angles: list[Angles] = [rotary.at(positions, ctx.prompt_lens) for rotary in self.rotaries]
        x: Tensor = self.embedding(input_ids)
        residual: Tensor | None = None
        for layer, (block, rope) in enumerate(zip(self.blocks, self.layer_rope)):
            if ctx.before_layer is not None:
                ctx.before_layer(layer)
            x, residual = block(x, residual, (None, None) if rope is None else angles[rope], ctx)
        return self.norm.add(x, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """``[N, E] -> [N, V]`` fp32, for the rows that need them."""
        logits: Tensor = self.head(hidden)
        return logits

    def likeliest(self, hidden: Tensor) -> Tensor:
        """The likeliest token of each row: ``[N, E] -> [N]`` int64, -1 where a logit is not finite."""
        return self.head.likeliest(hidden)

    def drop_weights(self) -> int:
        """Let go of weights that are no parameters, until all are loaded again; how many bytes that were."""
        layers = [layer for layer in self.modules() if isinstance(layer, Linear | Embedding)]
        return sum(layer.method.drop(layer) for layer in layers)

    def weights_loaded(self) -> None:
        """Called after weights were loaded anew; parameters are where they were, so there is nothing to do."""

    def targets(self) -> dict[str, Target]:
        """Where each tensor of a checkpoint goes, by its name in Hugging Face's files."""
        targets = head_targets(self.embedding, self.norm, self.head)
        for index, block in enumerate(self.blocks):
            targets |= layer_targets(index, block)
        return targets


def build(
    arch: Architecture,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device,
    *,
    max_position: int | None = None,
    method: QuantMethod | None = None,
    empty: Empty | None = None,
) -> Decoder:
    """A decoder with unset weights.

    `max_position` bounds the rotation tables (the longest sequence the engine admits); unset, the model's own.
    `empty` gives the memory that weights live in; unset, torch does.
    """
    kit = Kit(ops, method or Plain(), dtype, device, empty or partial(_empty, device))
    return Decoder(arch, kit, min(max_position or arch.max_position, arch.max_position)).eval()


def _empty(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)
