"""Products of tens to hundreds of tokens whose weights are on their way before their inputs are there (Hopper).

Weights never change, so a program asks for as many tiles of them as its shared memory holds before it waits for the
kernel before it (programmatic dependent launch): memory is read while that kernel ends and its results come to rest.
Tiles come by bulk copies and are multiplied where they lie, the weight as the tall side. Programs stay: each takes unit
after unit (a tile of features, a tile of tokens, a part of K), and the tiles of the next come while the last is
written.

Legend: T tokens, K input size, N output features, S parts of K.
"""

import torch
import triton

from octavo.kernels.triton.act import gated
from octavo.kernels.triton.common import LAUNCH, let_next_start, wait_for_inputs
from octavo.kernels.triton.hopper import HOPPER, tiles
from octavo.kernels.triton.linear_shape import Shape, result_of
from octavo.kernels.triton.target import target_here

if HOPPER:
    from octavo.kernels.triton.hopper import (
        bring,
        fence_async_shared,
        gl,
        gluon,
        mbarrier,
        warpgroup_mma,
        warpgroup_mma_init,
        warpgroup_mma_wait,
    )

    @gluon.jit
    def _place(unit, token_tiles, FEATURES: gl.constexpr, TOKENS: gl.constexpr, PARTS: gl.constexpr):
        """First feature, first token and part of a unit."""
        tile = unit // PARTS
        return tile // token_tiles * FEATURES, tile % token_tiles * TOKENS, unit % PARTS

    @gluon.jit
    def _spot(
        chunk, first, token_tiles, CHUNKS: gl.constexpr, FEATURES: gl.constexpr, TOKENS: gl.constexpr,
        DEPTH: gl.constexpr, PARTS: gl.constexpr,
    ):  # fmt: skip
        """First feature, token and column of a chunk; a program's chunks are counted through all its units."""
        unit = first + chunk // CHUNKS * gl.num_programs(0)
        feature, token, part = _place(unit, token_tiles, FEATURES, TOKENS, PARTS)
        return feature, token, (part * CHUNKS + chunk % CHUNKS) * DEPTH

    @gluon.jit
    def _tile(source, row, column, barrier, into, pred, GATED: gl.constexpr):
        if GATED:
            bring(source, [0, row, column], barrier, into, pred=pred)
        else:
            bring(source, [row, column], barrier, into, pred=pred)

    @gluon.jit(do_not_specialize=["T", "units", "token_tiles"])
    def _early(
        x_tiles, w_tiles, b_ptr, y_ptr, T, N, units, token_tiles,
        CHUNKS: gl.constexpr, FEATURES: gl.constexpr, TOKENS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
        PARTS: gl.constexpr, ONCE: gl.constexpr, BIAS: gl.constexpr, ACT: gl.constexpr, WARPS: gl.constexpr,
    ):  # fmt: skip
        let_next_start()
        GATED: gl.constexpr = ACT != "none"
        ROWS: gl.constexpr = FEATURES * 2 if GATED else FEATURES
        BYTES: gl.constexpr = (ROWS + TOKENS) * DEPTH * 2
        first = gl.program_id(0)
        mine = (units - first + gl.num_programs(0) - 1) // gl.num_programs(0)
        chunks = mine * CHUNKS
        dtype: gl.constexpr = w_tiles.dtype
        if GATED:
            w = gl.allocate_shared_memory(dtype, [STAGES, 2, FEATURES, DEPTH], w_tiles.layout)
        else:
            w = gl.allocate_shared_memory(dtype, [STAGES, FEATURES, DEPTH], w_tiles.layout)
        x = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, DEPTH], x_tiles.layout)
        there = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for s in gl.static_range(STAGES):
            mbarrier.init(there.index(s), count=1)
        fence_async_shared()
        for s in gl.static_range(STAGES):
            feature, token, column = _spot(s, first, token_tiles, CHUNKS, FEATURES, TOKENS, DEPTH, PARTS)
            mbarrier.expect(there.index(s), BYTES, pred=s < chunks)
            _tile(w_tiles, feature, column, there.index(s), w.index(s), s < chunks, GATED)
        wait_for_inputs()
        for s in gl.static_range(STAGES):
            feature, token, column = _spot(s, first, token_tiles, CHUNKS, FEATURES, TOKENS, DEPTH, PARTS)
            _tile(x_tiles, token, column, there.index(s), x.index(s), s < chunks, False)

        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, TOKENS, 16])
        chunk = 0
        for done in range(mine):
            acc = warpgroup_mma_init(gl.zeros((ROWS, TOKENS), gl.float32, layout=layout))
            for _ in range(CHUNKS):
                stage = chunk % STAGES
                mbarrier.wait(there.index(stage), chunk // STAGES & 1)
                rows = w.index(stage).reshape([ROWS, DEPTH])
                acc = warpgroup_mma(rows, x.index(stage).permute((1, 0)), acc, is_async=True)
                if not ONCE:
                    # The product before this one is done with its tiles: others may take their place.
                    acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
                    late = chunk + (STAGES - 1)
                    if (chunk > 0) & (late < chunks):
                        free = late % STAGES
                        feature, token, column = _spot(late, first, token_tiles, CHUNKS, FEATURES, TOKENS, DEPTH, PARTS)
                        mbarrier.expect(there.index(free), BYTES)
                        _tile(w_tiles, feature, column, there.index(free), w.index(free), True, GATED)
                        _tile(x_tiles, token, column, there.index(free), x.index(free), True, False)
                chunk += 1
            total = warpgroup_mma_wait(0, deps=[acc])

            if GATED:
                # [2 F, T] to [F, T] twice, a pair in one thread
                pairs = gl.permute(gl.reshape(total, (2, FEATURES, TOKENS)), (1, 2, 0))
                apart: gl.constexpr = gl.BlockedLayout([1, 1, 2], [32, 1, 1], [1, WARPS, 1], [2, 0, 1])
                gate, up = gl.split(gl.convert_layout(pairs, apart))
            else:
                gate = total
            at: gl.constexpr = gate.type.layout
            unit = first + done * gl.num_programs(0)
            first_feature, first_token, part = _place(unit, token_tiles, FEATURES, TOKENS, PARTS)
            features = first_feature + gl.arange(0, FEATURES, layout=gl.SliceLayout(1, at))
            tokens = first_token + gl.arange(0, TOKENS, layout=gl.SliceLayout(0, at))
            if BIAS:
                gate += gl.load(b_ptr + features, mask=features < N, other=0.0).to(gl.float32)[:, None]
            if GATED:
                if BIAS:
                    up += gl.load(b_ptr + N + features, mask=features < N, other=0.0).to(gl.float32)[:, None]
                y = gated(gate, up, ACT, y_ptr.dtype.element_ty)
            else:
                y = gate
            row = tokens.to(gl.int64)
            if PARTS > 1:
                row += part.to(gl.int64) * T
            live = (features < N)[:, None] & (tokens < T)[None, :]
            gl.store(y_ptr + row[None, :] * N + features[:, None], y.to(y_ptr.dtype.element_ty), mask=live)


def early_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Shape, activation: str = "none"
) -> torch.Tensor:
    """``act(x W^T + b)``: ``[T, K] -> [T, N]``, or with K in parts their ``[S, T, N]`` fp32, without a bias."""
    tokens, size = x.shape
    gate = activation != "none"
    features = weight.shape[0] // (2 if gate else 1)
    y = result_of(x, features, shape)
    token_tiles = triton.cdiv(tokens, shape.tokens)
    units = triton.cdiv(features, shape.features) * token_tiles * shape.parts
    programs = min(units, target_here().multiprocessors)
    chunks = size // (shape.parts * shape.depth)
    stages = min(shape.stages, chunks * triton.cdiv(units, programs))
    rows = weight.view(2, features, size) if gate else weight
    _early[(programs,)](
        tiles(x, [shape.tokens, shape.depth]),
        tiles(rows, [2, shape.features, shape.depth] if gate else [shape.features, shape.depth]),
        x if bias is None else bias,
        y,
        tokens,
        features,
        units,
        token_tiles,
        CHUNKS=chunks,
        FEATURES=shape.features,
        TOKENS=shape.tokens,
        DEPTH=shape.depth,
        STAGES=stages,
        PARTS=shape.parts,
        ONCE=units == programs and stages == chunks,
        BIAS=bias is not None,
        ACT=activation,
        WARPS=shape.warps,
        num_warps=shape.warps,
        **LAUNCH,
    )
    return y
