"""The decoder as one call of the CPU kernels a step, over the weights of a loaded torch module.

Which norms stand where and what a rotation is, is read from the module's parts; so a family that the blocks of
models/blocks.py can express needs nothing here.
"""

import logging
from typing import Any

import torch
from torch import Tensor

from octavo.base.config import EngineConfig
from octavo.base.errors import ConfigError
from octavo.kernels.context import ForwardContext
from octavo.kernels.cpu.loader import native
from octavo.kernels.cpu.pack import ONE_PLANE, TWO_PLANES, likeliest, linear
from octavo.models.arch import NORMS
from octavo.models.blocks import Block
from octavo.models.decoder import Decoder
from octavo.nn.norm import RmsNorm
from octavo.nn.quant.native import Native, Packed, packed, table_of

log = logging.getLogger(__name__)

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
KV_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: 3}
MAX_HEAD_DIM = 512


class NativeDecoder:
    """worker/model.Model over a `Decoder` whose weights the method `Native` holds."""

    def __init__(self, decoder: Decoder, method: Native, planes: int = TWO_PLANES) -> None:
        self.decoder = decoder
        self.method = method
        self._planes = planes
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
        weight = self._head()
        self._logits = _grown(self._logits, hidden.shape[0])
        logits = linear(
            self.method.machine, weight.parts(None), hidden, weight.out_features, self._logits, self._planes
        )
        return self.decoder.head.finish(logits)

    def likeliest(self, hidden: Tensor) -> Tensor:
        """``[N, E] -> [N]`` int64; -1 where a logit is not finite."""
        head = self.decoder.head
        if head.divisor != 1.0 or head.softcap is not None:
            return head.ops.greedy(self.logits(hidden))
        weight = self._head()
        self._logits = _grown(self._logits, hidden.shape[0])
        return likeliest(self.method.machine, weight.parts(None), hidden, self._logits, self._planes)

    def _head(self) -> Packed:
        linear = self.decoder.head.linear
        weight = packed(linear) if linear is not None else table_of(self.decoder.embedding).head
        assert weight is not None
        return weight

    def drop_weights(self) -> int:
        """Let go of all packed weights, and of the kernels' decoder over them; how many bytes that were."""
        self._native = None
        return self.decoder.drop_weights()

    def weights_loaded(self) -> None:
        """Build the kernels' decoder over the weights that there are now."""
        module = native()
        assert module is not None
        decoder, norm = self.decoder, self.decoder.norm
        self._native = module.Decoder(
            self.method.machine, decoder.arch.hidden_size, norm.eps, norm.weight.data_ptr(), self._planes
        )
        for layer, block, rope in zip(decoder.arch.layers, decoder.blocks, decoder.layer_rope):
            norms = [None if name is None else block.norm(name) for name in NORMS[layer.norms]]
            self._add(block, norms, -1 if rope is None else rope)
        self._placed = None

    def _add(self, block: Block, norms: list[RmsNorm | None], rope: int) -> None:
        attention, mlp, heads = block.attention, block.mlp, block.attention.heads
        gate_up = packed(mlp.gate_up).parts(mlp.gate_up.bias)
        pieces = sorted(gate_up, key=lambda part: part[1])
        addresses = [_address(norm) for norm in (*norms, attention.q_norm, attention.k_norm)]
        self._native.add(
            packed(attention.qkv).parts(attention.qkv.bias),
            packed(attention.o).parts(attention.o.bias),
            [(pieces[0][0], 0, pieces[0][2])],
            [(pieces[1][0], 0, pieces[1][2])],
            packed(mlp.down).parts(mlp.down.bias),
            addresses,
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


def accelerate(decoder: Decoder, block_size: int, config: EngineConfig, plain: torch.dtype) -> tuple[Any, torch.dtype]:
    """The decoder itself, or its native form where all of it is covered, and the type of its KV cache: `plain`, that
    of the activations, for the decoder itself.

    Says which in one line. Raises ConfigError for a type of cache that the form cannot read.
    """
    method, asked = decoder.embedding.method, config.cache.kv_cache_dtype
    reason = _uncovered(decoder, block_size) if isinstance(method, Native) else "the CPU kernels do not run"
    if reason:
        if asked not in ("auto", str(plain).removeprefix("torch.")):
            raise ConfigError(f"kv_cache_dtype {asked} needs the CPU kernels for all of the model: {reason}")
        if isinstance(method, Native):
            log.info("CPU kernels (%s) for matrices only, torch for the rest: %s", method.machine.isa, reason)
        return decoder, plain
    assert isinstance(method, Native)
    planes = activation_planes(method, config.device.cpu_activations)
    kv_dtype = getattr(torch, asked) if asked != "auto" else torch.float32 if method.exact else torch.float16
    machine = method.machine
    bits = {ONE_PLANE: "int8", TWO_PLANES: "int16"}[planes]
    log.info("CPU kernels: %s on %d threads, %s activations", machine.isa, machine.threads, bits)
    # Only sampling is left to torch, and its own threads would spin on the kernels' cores between two operations.
    torch.set_num_threads(1)
    return NativeDecoder(decoder, method, planes), kv_dtype


def activation_planes(method: Native, asked: str) -> int:
    """Planes of activation codes. Unasked, one for weights in the forms that are picked for speed: Q4_0 and Q8_0,
    which ggml made for products with int8, and what is quantized at load."""
    if asked != "auto":
        return ONE_PLANE if asked == "int8" else TWO_PLANES
    mostly = max(method.block_types, key=method.block_types.__getitem__, default="")
    return ONE_PLANE if method.quantization is not None or mostly in ("Q4_0", "Q8_0") else TWO_PLANES


def _uncovered(decoder: Decoder, block_size: int) -> str:
    """Why the native decoder cannot run a model; empty: it can."""
    if block_size % 16:
        return f"a KV block of {block_size} tokens is no multiple of 16"
    for block in decoder.blocks:
        heads = block.attention.heads
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
