"""Paged attention of a mixed step: rows of one query to the split-KV kernel, the others to the tiled one.

What the kernels need to know of a step is planned once and kept in ``meta.scratch``, so all layers of a KV group
share it. A captured step plans its launches before it knows the numbers: `PlanAhead` says where they will stand.
Legend: T tokens, R rows, H heads, D head dim, B block size, N blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from octavo.kernels.ahead import Ints, Lines, Longs, Room, Sent, StepInput
from octavo.kernels.context import AttentionMeta, Projected
from octavo.kernels.triton import attention_early
from octavo.kernels.triton import stage as staging
from octavo.kernels.triton.attention_decode import DecodePlan, deal_tiles, decode_attention
from octavo.kernels.triton.attention_fresh import FreshRow, fresh_attention, prepare_alone, prepared_rows, suits
from octavo.kernels.triton.attention_prefill import prefill_attention
from octavo.kernels.triton.attention_tiling import Heads, Tiles, Tiling, max_tiles, tiling
from octavo.kernels.triton.prologue import qkv_prologue
from octavo.kernels.triton.target import target_here

PROGRAMS_PER_MULTIPROCESSOR = 4
PREFILL_SHARE = 2  # a program of prefill takes the room of two


@dataclass(slots=True)
class StepPlan:
    """Of the rows of one query, and of the others; None: the step has no such rows."""

    decode: DecodePlan | None
    tiles: Tiles | None
    fresh: list[FreshRow] = field(default_factory=list)


@dataclass(slots=True)
class PlanAhead:
    """A plan whose numbers come later, int32 on the device: as in `DecodePlan` and `Tiles`."""

    cu_tiles: torch.Tensor  # [R + 1]
    share: torch.Tensor  # [1]
    tiles: Tiles | None
    early: bool


def self_attention(
    projected: Projected,
    kv: torch.Tensor,
    meta: AttentionMeta,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """As `SelfAttention` in kernels/ops: ``[T, (H + 2 H_kv) D] -> [T, H, D]``."""
    if attention_early.takes_projected(projected) and _is_early(projected, meta, window):
        qkv = projected.qkv
        out = torch.empty((qkv.shape[0], projected.num_heads, projected.head_dim), dtype=qkv.dtype, device=qkv.device)
        plan = step_plan(meta, out, kv.shape[2], window, softcap).decode
        if plan is not None:
            attention_early.early_attention(projected, kv, meta, plan, out, scale, softcap)
        return out
    return paged_attention(qkv_prologue(projected, kv, meta), kv, meta, scale, window, softcap)


def _is_early(projected: Projected, meta: AttentionMeta, window: int | None) -> bool:
    """Whether the step's plan is, or will be, one for attention_early. What other plans hold depends on what the
    prologue did before."""
    plan = meta.scratch.get(f"triton:{window}")
    if isinstance(plan, StepPlan):
        return plan.decode is not None and plan.decode.tickets is not None
    if isinstance(plan, PlanAhead):
        return plan.early
    p = projected
    heads = Heads(p.num_kv_heads, p.num_heads // p.num_kv_heads, p.head_dim, p.qkv.dtype.itemsize)
    return _is_decode(meta) and _suits_early(heads, meta.block_size, window)


def paged_attention(
    q: torch.Tensor, kv: torch.Tensor, meta: AttentionMeta, scale: float, window: int | None, softcap: float | None
) -> torch.Tensor:
    """As `PagedAttention` in kernels/ops: ``[T, H, D] -> [T, H, D]``."""
    plan = step_plan(meta, q, kv.shape[2], window, softcap)
    if plan.fresh and plan.fresh[0].length == q.shape[0]:
        return fresh_attention(q, plan.fresh[0], scale).contiguous()
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if plan.decode is not None and plan.decode.tickets is not None:
        attention_early.early_attention(q, kv, meta, plan.decode, out, scale, softcap)
    elif plan.decode is not None:
        decode_attention(q, kv, meta, plan.decode, out, scale, window, softcap)
    for row in plan.fresh:
        out[row.start : row.start + row.length] = fresh_attention(q, row, scale)
    if plan.tiles is not None:
        prefill_attention(q, kv, meta, plan.tiles, out, scale, window, softcap)
    return out


def step_plan(
    meta: AttentionMeta, q: torch.Tensor, num_kv_heads: int, window: int | None, softcap: float | None = None
) -> StepPlan:
    """The step's plan, made at the first layer that asks: from host numbers, or from the places told ahead."""
    key = f"triton:{window}"
    plan = meta.scratch.get(key)
    if isinstance(plan, StepPlan):
        return plan
    if isinstance(plan, PlanAhead):
        made = _completed(plan, meta, q, num_kv_heads, plain=window is None and softcap is None)
    else:
        made = _from_host(meta, q, num_kv_heads, window, plain=window is None and softcap is None)
    meta.scratch[key] = made
    return made


def _from_host(meta: AttentionMeta, q: torch.Tensor, num_kv_heads: int, window: int | None, *, plain: bool) -> StepPlan:
    query_lens = np.asarray(meta.query_lens, dtype=np.int64)
    seq_lens = np.asarray(meta.seq_lens_host, dtype=np.int64)
    heads = Heads(num_kv_heads, q.shape[1] // num_kv_heads, q.shape[2], q.dtype.itemsize)
    early = _is_decode(meta) and _suits_early(heads, meta.block_size, window)
    programs = num_programs(q.device, early=early)
    rows = query_lens.size
    fresh = prepared_rows(meta) if plain else []
    if sum(row.length for row in fresh) == q.shape[0]:
        return StepPlan(None, None, fresh)
    tiled = query_lens.copy()
    tiled[[row.index for row in fresh]] = 0
    packed = np.empty(2 * rows + 6, dtype=np.int32)
    cu_single, cu_tiles = packed[: rows + 1], packed[rows + 2 :]
    packed[rows + 1] = _dealer(early=early)(cu_single, _visible(query_lens, seq_lens, window), num_kv_heads, programs)
    cut = tiling(q.shape[0], heads, programs // PREFILL_SHARE)
    count = _fill_tiles(cu_tiles, tiled, seq_lens, window, cut)
    device = _upload(packed, q.device)
    decode = None
    if cu_single[-1]:
        decode = _decode_plan(device[: rows + 1], device[rows + 1 : rows + 2], num_kv_heads, q, early=early)
    return StepPlan(decode, Tiles(device[rows + 2 :], count, cut) if count else None, fresh)


def _completed(ahead: PlanAhead, meta: AttentionMeta, q: torch.Tensor, num_kv_heads: int, *, plain: bool) -> StepPlan:
    fresh = prepared_rows(meta) if plain else []
    if fresh:
        return StepPlan(None, None, fresh)
    decode = _decode_plan(ahead.cu_tiles, ahead.share, num_kv_heads, q, early=ahead.early)
    return StepPlan(decode, ahead.tiles)


def _decode_plan(
    cu_tiles: torch.Tensor, share: torch.Tensor, num_kv_heads: int, q: torch.Tensor, *, early: bool
) -> DecodePlan:
    programs, group, dim = num_programs(q.device, early=early), q.shape[1] // num_kv_heads, q.shape[2]
    part = torch.empty((2 * programs, group, dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((2 * programs, group), dtype=torch.float32, device=q.device)
    rows = cu_tiles.shape[0] - 1
    tickets = torch.zeros(rows * num_kv_heads, dtype=torch.int32, device=q.device) if early else None
    return DecodePlan(cu_tiles, share, part, lse, programs, tickets)


class TritonAhead:
    """`AheadOps` for one shape of heads."""

    def __init__(self, group: int, num_kv_heads: int, head_dim: int, dtype_bytes: int, block_size: int) -> None:
        self.fresh_rooms = suits(head_dim, dtype_bytes)
        self._heads = Heads(num_kv_heads, group, head_dim, dtype_bytes)
        self._block_size = block_size
        self._programs = target_here().multiprocessors * PROGRAMS_PER_MULTIPROCESSOR
        self._early_programs = target_here().multiprocessors * attention_early.PROGRAMS_PER_MULTIPROCESSOR

    def places(self, room: Room) -> int:
        return (room.rows + 2) + (room.rows + 4 if room.mixed else 0)

    def plan(self, out: Ints, room: Room, query_lens: Longs, seq_lens: Longs, window: int | None) -> None:
        rows, used = room.rows, query_lens.size
        visible = _visible(query_lens if room.mixed else None, seq_lens, window)
        early = self._early(room, window)
        programs = self._early_programs if early else self._programs
        out[rows + 1] = _dealer(early=early)(out[: used + 1], visible, self._heads.kv_heads, programs)
        if used < rows:
            out[used + 1 : rows + 1] = out[used]
        if room.mixed:
            tiles = out[rows + 2 :]
            _fill_tiles(tiles, query_lens, seq_lens, window, self._tiling(room))

    def attach(self, meta: AttentionMeta, room: Room, window: int | None, plan: torch.Tensor) -> None:
        rows = room.rows
        tiles = None
        if room.mixed:
            cut = self._tiling(room)
            tiles = Tiles(plan[rows + 2 :], max_tiles(room.tokens, rows, cut.queries), cut)
            if room.fresh and window is None:
                prepare_alone(meta, room.tokens)
        early = self._early(room, window)
        meta.scratch[f"triton:{window}"] = PlanAhead(plan[: rows + 1], plan[rows + 1 : rows + 2], tiles, early)

    def stage(self, lines: Lines, into: StepInput, sent: Sent, block_size: int) -> None:
        staging.stage(lines, into, sent, block_size)

    def _tiling(self, room: Room) -> Tiling:
        return tiling(room.tokens, self._heads, self._programs // PREFILL_SHARE)

    def _early(self, room: Room, window: int | None) -> bool:
        return not room.mixed and _suits_early(self._heads, self._block_size, window)


def num_programs(device: torch.device, *, early: bool = False) -> int:
    """How many programs keep the device full, of decode attention or of attention_early; a handful under the
    interpreter."""
    if device.type == "cpu":
        return 8
    each = attention_early.PROGRAMS_PER_MULTIPROCESSOR if early else PROGRAMS_PER_MULTIPROCESSOR
    return target_here().multiprocessors * each


def _dealer(*, early: bool) -> Callable[[Ints, Longs, int, int], int]:
    """What deals the tiles of rows of one query out to programs: `deal_tiles`, or attention_early's own."""
    return attention_early.deal_early if early else deal_tiles


def _is_decode(meta: AttentionMeta) -> bool:
    """Whether all rows of a step that the host plans compute one token."""
    return all(length == 1 for length in meta.query_lens)


def _suits_early(heads: Heads, block_size: int, window: int | None) -> bool:
    return attention_early.suits(heads.group, heads.dim, heads.dtype_bytes, block_size, window)


def _visible(query_lens: Longs | None, seq_lens: Longs, window: int | None) -> Longs:
    """Tokens that the rows of one query attend to, 0 for the others; no `query_lens`: all are of one query."""
    visible = seq_lens if window is None else np.minimum(seq_lens, window)
    return visible if query_lens is None else visible * (query_lens == 1)


def _fill_tiles(out: Ints, query_lens: Longs, seq_lens: Longs, window: int | None, cut: Tiling) -> int:
    """`Tiles.running` of the rows of several queries; the lengths ``[r]``, r <= R. Gives the number of tiles."""
    used, several = query_lens.size, query_lens > 1
    counts = out[1:-3]
    out[0] = 0
    np.add.accumulate((query_lens + (cut.queries - 1)) // cut.queries * several, out=counts[:used])
    count = int(counts[used - 1]) if used else 0
    counts[used:] = count
    longest = int((seq_lens * several).max(initial=0))
    out[-2:] = 0
    out[-3] = cut.pieces(count, longest if window is None else min(longest, window + cut.queries))
    return count


def _upload(values: np.ndarray, device: torch.device) -> torch.Tensor:
    host = torch.from_numpy(values)
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host
