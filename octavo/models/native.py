"""The decoder as one call of the CPU kernels a step, over the weights of a loaded torch module.

Which norms stand where and what a rotation is, is read from the module's parts; so a family that the blocks of
models/blocks.py can express needs nothing here.
"""

import logging
from typing import Any

import torch
from torch import Tensor

from octavo.kernels.context import ForwardContext
from octavo.kernels.cpu.loader import native
from octavo.kernels.cpu.pack import linear
from octavo.models.blocks import Block, PostNormBlock, PreNormBlock, SandwichBlock
from octavo.models.decoder import Decoder
from octavo.nn.norm import RmsNorm
from octavo.nn.quant.native import Native, packed, table_of

log = logging.getLogger(__name__)

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
KV_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
MAX_HEAD_DIM = 512

# Norms before and after attention, before and after the feed-forward half.
_NORM_PLACES: dict[type[Block], tuple[str | None, str | None, str | None, str | None]] = {
    PreNormBlock: ("input_layernorm", None, "post_attention_layernorm", None),
    SandwichBlock: (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    PostNormBlock: (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
}


class NativeDecoder:
    """worker/head/generate.Model over a `Decoder` whose weights the method `Native` holds."""

    def __init__(self, decoder: Decoder, method: Native) -> None:
        self.decoder = decoder
        self.method = method
        self.kv_dtype = torch.float32 if method.exact else torch.float16
        self._native: Any = None
        self._placed: object = None
        self.weights_loaded()
        self._hidden = torch.empty(0, decoder.arch.hidden_size)
        self._logits = torch.empty(0, decoder.arch.vocab_size)

    def __call__(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """``[T] int64, [T] int64 -> [T, E]`` fp32 after the last norm. Writes this step's K and V.

        The result stays valid until the next call, as that of `logits` does until its next: fresh memory of this
        size would come from the system, page by page, at every step.
        """
        decoder = self.decoder
        if self._placed is not ctx.kv:
            self._place(ctx)
        positions = positions.contiguous()
        self._hidden = hidden = _grown(self._hidden, input_ids.shape[0])
        self.method.look_up_into(decoder.embedding, input_ids, decoder.embedding.multiplier, hidden)
        angles = [rotary.at(positions, ctx.prompt_lens) for rotary in decoder.rotaries]
        angles = [(table.contiguous(), index.contiguous()) for table, index in angles]
        ropes = [(table.data_ptr(), index.data_ptr(), table.shape[1]) for table, index in angles]
        first = ctx.groups[0]
        groups = [
            (meta.block_table.data_ptr(), meta.block_table.stride(0), meta.slots.data_ptr()) for meta in ctx.groups
        ]
        self._native.forward(
            input_ids.shape[0],
            first.num_rows,
            positions.data_ptr(),
            first.query_start.data_ptr(),
            groups,
            ropes,
            hidden.data_ptr(),
        )
        return hidden[: input_ids.shape[0]]

    def logits(self, hidden: Tensor) -> Tensor:
        """``[N, E] -> [N, V]`` fp32."""
        head = self.decoder.head
        embedding = self.decoder.embedding
        weight = packed(head.linear) if head.linear is not None else table_of(embedding).head
        assert weight is not None
        self._logits = _grown(self._logits, hidden.shape[0])
        logits = linear(self.method.machine, weight.parts(None), hidden, weight.out_features, self._logits)
        return head.finish(logits)

    def likeliest(self, hidden: Tensor) -> Tensor:
        """``[N, E] -> [N]`` int64; -1 where a logit is not finite."""
        return self.decoder.head.ops.greedy(self.logits(hidden))

    def drop_weights(self) -> int:
        """Let go of all packed weights, and of the kernels' decoder over them; how many bytes that were."""
        self._native = None
        return self.decoder.drop_weights()

    def weights_loaded(self) -> None:
        """Build the kernels' decoder over the weights that there are now."""
        module = native()
        assert module is not None
        decoder, norm = self.decoder, self.decoder.norm
        self._native = module.Decoder(self.method.machine, decoder.arch.hidden_size, norm.eps, norm.weight.data_ptr())
        for block, rope in zip(decoder.blocks, decoder.layer_rope):
            self._add(block, -1 if rope is None else rope)
        self._placed = None

    def _add(self, block: Block, rope: int) -> None:
        attention, mlp, heads = block.attention, block.mlp, block.attention.heads
        gate_up = packed(mlp.gate_up).parts(mlp.gate_up.bias)
        pieces = sorted(gate_up, key=lambda part: part[1])
        places = [None if name is None else block.norm(name) for name in _NORM_PLACES[type(block)]]
        norms = [_address(norm) for norm in (*places, attention.q_norm, attention.k_norm)]
        self._native.add(
            packed(attention.qkv).parts(attention.qkv.bias),
            packed(attention.o).parts(attention.o.bias),
            [(pieces[0][0], 0, pieces[0][2])],
            [(pieces[1][0], 0, pieces[1][2])],
            packed(mlp.down).parts(mlp.down.bias),
            norms,
            heads.qk_norm == "full",
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            heads.scale,
            heads.window or 0,
            heads.softcap or 0.0,
            rope,
            ACTIVATIONS[mlp.activation],
            block.residual_multiplier,
        )

    def _place(self, ctx: ForwardContext) -> None:
        """Tell the kernels where the cache lies; it stays there until the worker makes another."""
        cache = ctx.kv[0]
        size, stride = cache.shape[3], cache.stride(0) * cache.itemsize
        pointers = [layer.data_ptr() for layer in ctx.kv]
        self._native.place(ctx.layer_group, pointers, stride, size, KV_TYPES[cache.dtype])
        self._placed = ctx.kv


def accelerate(decoder: Decoder, block_size: int) -> Any:
    """The decoder itself, or its native form where all of it is covered; says which in one line."""
    method = decoder.embedding.method
    if not isinstance(method, Native):
        return decoder
    reason = _uncovered(decoder, block_size)
    if reason:
        log.info("CPU kernels (%s) for matrices only, torch for the rest: %s", method.machine.isa, reason)
        return decoder
    log.info("CPU kernels: %s on %d threads", method.machine.isa, method.machine.threads)
    # Only sampling is left to torch, and its own threads would spin on the kernels' cores between two operations.
    torch.set_num_threads(1)
    return NativeDecoder(decoder, method)


def _uncovered(decoder: Decoder, block_size: int) -> str:
    """Why the native decoder cannot run a model; empty: it can."""
    if block_size % 16:
        return f"a KV block of {block_size} tokens is no multiple of 16"
    for block in decoder.blocks:
        heads = block.attention.heads
        if type(block) not in _NORM_PLACES:
            return f"no native form of {type(block).__name__}"
        if heads.head_dim % 16 or heads.head_dim > MAX_HEAD_DIM:
            return f"heads of {heads.head_dim} dims"
        if block.mlp.activation not in ACTIVATIONS:
            return f"activation {block.mlp.activation}"
    return ""


def _address(norm: RmsNorm | None) -> int:
    return 0 if norm is None else norm.weight.data_ptr()


def _grown(buffer: Tensor, rows: int) -> Tensor:
    """The buffer, or a larger one of at least `rows` rows."""
    return buffer if buffer.shape[0] >= rows else torch.empty(rows, buffer.shape[1])
