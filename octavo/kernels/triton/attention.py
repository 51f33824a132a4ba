"""Paged attention of a mixed step: rows of one query to the split-KV kernel, the others to the tiled one.

What the kernels need to know of the step is planned once and kept in ``meta.scratch``, so all layers of a KV group
share it. Legend: T tokens, R rows, H heads, D head dim, B block size, N blocks.
"""

from dataclasses import dataclass

import numpy as np
import torch

from octavo.kernels.context import AttentionMeta
from octavo.kernels.triton.attention_decode import DecodePlan, choose_chunk, decode_attention
from octavo.kernels.triton.attention_prefill import prefill_attention, query_tile

PROGRAMS_PER_MULTIPROCESSOR = 4


@dataclass(slots=True)
class StepPlan:
    """Rows [0, num_decodes) compute one token each; the rest go by tiles."""

    num_decodes: int
    num_decode_tokens: int
    decode: DecodePlan | None
    cu_tiles: torch.Tensor | None  # int32 [R - num_decodes + 1]
    max_tiles: int


def paged_attention(
    q: torch.Tensor, kv: torch.Tensor, meta: AttentionMeta, scale: float, window: int | None, softcap: float | None
) -> torch.Tensor:
    """As `PagedAttention` in kernels/ops: ``[T, H, D] -> [T, H, D]``."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    plan = step_plan(meta, q, kv.shape[2], window)
    first = plan.num_decodes
    if plan.decode is not None:
        decode_attention(
            q[:first],
            kv,
            meta.block_table[:first],
            meta.seq_lens[:first],
            plan.decode,
            out[:first],
            scale,
            window,
            softcap,
        )
    if plan.cu_tiles is not None:
        prefill_attention(
            q,
            kv,
            meta.block_table[first:],
            meta.seq_lens[first:],
            meta.query_start[first:],
            plan.cu_tiles,
            plan.max_tiles,
            out,
            scale,
            window,
            softcap,
        )
    return out


def step_plan(meta: AttentionMeta, q: torch.Tensor, num_kv_heads: int, window: int | None) -> StepPlan:
    """The step's plan, made from host numbers at the first layer that asks."""
    key = f"triton:{window}"
    plan = meta.scratch.get(key)
    if isinstance(plan, StepPlan):
        return plan
    lens = np.asarray(meta.query_lens, dtype=np.int64)
    longer = np.flatnonzero(lens != 1)
    first = int(longer[0]) if longer.size else len(lens)
    decode = None
    if first:
        visible = np.asarray(meta.seq_lens_host[:first], dtype=np.int64)
        decode = plan_decode(visible if window is None else np.minimum(visible, window), q, num_kv_heads)
    cu_tiles, max_tiles = None, 0
    if first < len(lens):
        tiles = -(-lens[first:] // query_tile(q.dtype, q.shape[2]))
        cu_tiles = _upload(_running(tiles), q.device)
        max_tiles = int(tiles.sum())
    plan = StepPlan(first, first, decode, cu_tiles, max_tiles)
    meta.scratch[key] = plan
    return plan


def plan_decode(visible: np.ndarray, q: torch.Tensor, num_kv_heads: int) -> DecodePlan:
    """Chunks for rows that see ``visible[r]`` tokens each."""
    programs = num_programs(q.device)
    chunk = choose_chunk(visible, num_kv_heads, programs)
    running = _running(-(-visible // chunk))
    packed = _upload(np.append(running, np.int32(chunk)), q.device)
    capacity = int(running[-1])
    heads, dim = q.shape[1], q.shape[2]
    part = torch.empty((capacity, heads, dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((capacity, heads), dtype=torch.float32, device=q.device)
    return DecodePlan(packed[:-1], packed[-1:], part, lse, programs)


def num_programs(device: torch.device) -> int:
    """How many programs keep the device full; a handful under the interpreter."""
    if device.type != "cuda":
        return 8
    return PROGRAMS_PER_MULTIPROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count


def _running(counts: np.ndarray) -> np.ndarray:
    """``[n] -> [n + 1]``, from zero."""
    running = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=running[1:])
    return running


def _upload(values: np.ndarray, device: torch.device) -> torch.Tensor:
    host = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32))
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host
