"""The worker's composition root: which objects make up a runner, decided once."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from octavo.base.config import EngineConfig, Resolved
from octavo.base.errors import ConfigError
from octavo.base.specs import KVLayout
from octavo.kernels.ahead import AheadOps
from octavo.kernels.ops import Ops
from octavo.nn.quant.base import Empty, QuantMethod
from octavo.platform.base import Platform
from octavo.worker.batch import BatchBuilder
from octavo.worker.captured import CapturedLauncher
from octavo.worker.drawing import DRAWN_ROWS
from octavo.worker.host_batch import HostBatchBuilder
from octavo.worker.launch import EagerLauncher, Ground, Launcher
from octavo.worker.model import Model
from octavo.worker.prompt_logprobs import PromptLogprobs
from octavo.worker.runner import Runner
from octavo.worker.sample.bitmask import BitMask, laid_masks
from octavo.worker.sample.rules import standard_rules
from octavo.worker.sample.sampler import Sampler
from octavo.worker.shortage import FrugalLauncher
from octavo.worker.staged_batch import StagedBatchBuilder
from octavo.worker.staging import SMALLEST, Stager
from octavo.worker.table import RequestTable

if TYPE_CHECKING:
    from octavo.weights.facts import ModelFiles

SENDS_A_STEP = 4  # table, batch, sampler, prompt positions
INTS_A_TOKEN = 4  # of what is sent at once in a step of prompts, and what its rows need beside
STAGED_TOKENS = 1 << 14  # for which buffers are there from the start; pinned memory is slow to ask for


def build_runner(
    platform: Platform,
    ops: Ops,
    model: Model,
    layout: KVLayout,
    resolved: Resolved,
    vocab_size: int,
    *,
    kv_dtype: torch.dtype | None = None,
    capture: bool = False,
    group: int = 1,
    zeros: Empty | None = None,
) -> Runner:
    """A runner over a model whose weights are loaded; allocates the KV cache and the request table.

    `kv_dtype` is the cache's type where it is not the model's.
    `zeros` gives the cache's memory; unset, the platform does.
    `group`: query heads that share a KV head.
    `capture`: keep steps as captured device work, where the operations can.
    """
    flights = resolved.depth + 1
    staged = INTS_A_TOKEN * min(resolved.max_num_batched_tokens, STAGED_TOKENS)
    stager = Stager(platform, SENDS_A_STEP * flights, max(SMALLEST, staged))
    table = RequestTable(
        platform, stager, layout, resolved.max_num_seqs, resolved.max_model_len, vocab_size, ops.write_tokens
    )
    rules = standard_rules(table.max_rows, vocab_size, stager.send, ops)
    dtype: torch.dtype = kv_dtype or getattr(torch, resolved.dtype)
    ground = Ground(table, model, layout, kv_views(allocate_kv(zeros or platform.zeros, layout, dtype), layout))
    ahead = ahead_ops(ops, layout, dtype, group)
    eager = EagerLauncher(ground, batch_builder(platform, table, stager, resolved, ahead))
    launcher: Launcher = eager
    laid = laid_masks(platform, DRAWN_ROWS, vocab_size) if capture and ahead is not None else None
    riders = {"grammar": BitMask(vocab_size, stager.send, ops.forbid, laid)}
    if capture and ahead is not None:
        most = resolved.max_num_batched_tokens
        launcher = CapturedLauncher(platform, stager, ahead, ops, ground, eager, most, riders)
    return Runner(
        platform=platform,
        stager=stager,
        table=table,
        launcher=FrugalLauncher(platform, launcher, eager) if platform.counts_memory else launcher,
        model=model,
        sampler=Sampler(ops, table, stager, rules, riders),
        prompt_logprobs=PromptLogprobs(table, stager, ops.describe),
    )


def ahead_ops(ops: Ops, layout: KVLayout, kv_dtype: torch.dtype, group: int) -> AheadOps | None:
    """What steps planned ahead need, for this model's heads; None where the operations have no such thing."""
    spec = layout.groups[0].spec
    if ops.ahead is None:
        return None
    return ops.ahead(group, spec.num_kv_heads, spec.head_dim, kv_dtype.itemsize, layout.block_size)


def batch_builder(
    platform: Platform, table: RequestTable, stager: Stager, resolved: Resolved, ahead: AheadOps | None
) -> BatchBuilder:
    """The quickest way to a batch that the device and its operations have."""
    sizes = resolved.max_num_batched_tokens, resolved.max_num_seqs
    if platform.name == "cpu":
        return HostBatchBuilder(table, stager, *sizes)
    return BatchBuilder(table, stager, *sizes) if ahead is None else StagedBatchBuilder(table, stager, *sizes, ahead)


def weight_method(config: EngineConfig, resolved: Resolved, files: "ModelFiles") -> QuantMethod | None:
    """The form that weights are kept in; None: the model's own type.

    On a CPU that is the native kernels' packed form, where they are built, torch was not asked for, and activations
    are fp32. Raises ConfigError for a quantization that only those kernels have.
    """
    quantization = config.model.quantization
    wanted = config.device.attention_backend in ("auto", "native")
    if resolved.device == "cpu" and resolved.dtype == "float32" and wanted:
        from octavo.kernels.cpu.loader import machine, native

        if native() is not None:
            from octavo.kernels.cpu.packed_file import packed_file
            from octavo.nn.quant.native import Native

            kept = None if files.format == "dummy" else packed_file(files.weight_files, quantization)
            return Native(machine(resolved.threads), quantization, kept)
    if quantization is not None:
        raise ConfigError(f"quantization {quantization} needs the CPU kernels, a CPU and float32 activations")
    return None


def allocate_kv(zeros: Empty, layout: KVLayout, dtype: torch.dtype) -> Tensor:
    """The pool, zeroed: ``[num_blocks, num_slots, 2, num_kv_heads, block_size, head_dim]``."""
    spec = layout.groups[0].spec
    shape = (layout.num_blocks, layout.num_slots, 2, spec.num_kv_heads, layout.block_size, spec.head_dim)
    return zeros(shape, dtype)


def kv_views(pool: Tensor, layout: KVLayout) -> list[Tensor]:
    """Per layer its part of every block, ``[num_blocks, 2, num_kv_heads, block_size, head_dim]``, strided."""
    views: dict[int, Tensor] = {}
    for group in layout.groups:
        for slot, layer in enumerate(group.layers):
            views[layer] = pool[:, slot]
    return [views[layer] for layer in range(len(views))]
