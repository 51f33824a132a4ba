"""How products of up to 256 tokens are cut up: short lists of what was the fastest on an H200.

Measured within a layer of a 0.6B, 1.7B or 8B model (alone, a product has the caches and the bus for itself), for as
many tokens and as many numbers in the matrix, or features, as an entry says. Behind the last of a list cuBLAS is as
fast. Where the device has what linear_early needs its lists count, elsewhere those of plain loads.

Legend: T tokens, K input size, N output features, S parts of K.
"""

from dataclasses import dataclass

import torch
import triton

from octavo.kernels.triton.common import pow2, shared_memory
from octavo.kernels.triton.hopper import HOPPER

MAX_FEATURES = 32_768  # an output matrix has more
LINE = 64  # numbers of 16 bits in a line of the L2 cache
_LEAST = 4096  # features that keep the device busy without a gate
_PROGRAMS = 128  # that keep it busy
_ANY = 1 << 60
_TURNED = 16 << 10  # bytes that turning a gated product's result takes
_KNOWN = 256  # bytes for what tells that tiles are there


@dataclass(frozen=True, slots=True)
class Shape:
    """What one program computes at once, and how."""

    features: int
    tokens: int
    depth: int  # of K, at once
    parts: int  # of K, over programs
    warps: int
    stages: int
    early: bool = False  # by linear_early, if the matrices allow it


@dataclass(frozen=True, slots=True)
class _Best:
    most_tokens: int
    most: int
    tokens: int
    depth: int = 128
    stages: int = 12
    warps: int = 4
    features: int = 64
    parts: int = 0  # 0: as many as make up the programs
    least_size: int = 0  # of K


_WHOLE = (  # by the matrix's numbers
    _Best(16, _ANY, tokens=16, stages=6),
    _Best(32, 1 << 25, tokens=32, stages=6),
    _Best(64, 1 << 23, tokens=32, stages=6),
    _Best(64, 1 << 25, tokens=64, stages=4),
    _Best(128, 1 << 23, tokens=64, stages=4),
    _Best(256, 1 << 22, tokens=128, depth=64, stages=4, warps=8),
)
_GATED = (  # by the numbers of one of the two
    _Best(16, _ANY, tokens=16, stages=4),
    _Best(32, 1 << 24, tokens=32, stages=4),
    _Best(32, 1 << 25, tokens=32, depth=64, stages=4),
    _Best(32, _ANY, tokens=32, stages=4),
    _Best(64, 1 << 22, tokens=32, depth=64, stages=6),
    _Best(64, 1 << 24, tokens=64, stages=4),
    _Best(64, _ANY, tokens=64, depth=64, stages=4),
    _Best(128, 1 << 22, tokens=64, stages=4),
)
_PARTS = (  # by features
    _Best(16, 4096, tokens=16, stages=6),
    _Best(32, 4096, tokens=32, stages=6),
    _Best(64, 1024, tokens=32, stages=6),
    _Best(64, 4096, tokens=64, stages=4),
    _Best(128, 2048, tokens=64, stages=4),
    _Best(256, 1024, tokens=128, depth=64, stages=4, parts=4, least_size=3072),
    _Best(256, 1024, tokens=64, stages=4),
)
_EARLY_WHOLE = (
    _Best(8, _ANY, tokens=8),
    _Best(16, _ANY, tokens=16),
    _Best(32, _ANY, tokens=32),
    _Best(64, _ANY, tokens=64),
    _Best(128, 1 << 23, tokens=64),
    _Best(256, 1 << 22, tokens=64, features=128, depth=64),
)
_EARLY_OUTPUT = (
    _Best(8, _ANY, tokens=8, features=128),
    _Best(16, _ANY, tokens=16, features=128),
    _Best(32, _ANY, tokens=32, features=128),
    _Best(64, _ANY, tokens=64, features=128),
)
_EARLY_GATED = (
    _Best(8, _ANY, tokens=8, features=32),
    _Best(16, _ANY, tokens=16, features=32),
    _Best(32, _ANY, tokens=32, features=32),
    _Best(64, _ANY, tokens=64, features=32),
    _Best(128, 1 << 22, tokens=64, depth=64),
)
_EARLY_PARTS = (
    _Best(8, 2048, tokens=8, parts=4),
    _Best(8, 4096, tokens=8, parts=2),
    _Best(16, 2048, tokens=16, parts=4),
    _Best(16, 4096, tokens=16, parts=2),
    _Best(32, 2048, tokens=32, parts=4),
    _Best(32, 4096, tokens=32, parts=2),
    _Best(64, 1024, tokens=64, parts=4),
    _Best(64, 4096, tokens=64, parts=2),
    _Best(128, 2048, tokens=64, parts=2),
    _Best(128, 4096, tokens=64, features=128, depth=64, parts=2),
    _Best(256, 1024, tokens=64, parts=2),
)


def shape_whole(x: torch.Tensor, features: int, *, gate: bool) -> Shape | None:
    """How to compute a product whole, with or without a gate; None: cuBLAS is as fast."""
    size = x.shape[1]
    if not _fits(x) or size % 128 or not (gate or features >= _LEAST):
        return None
    best = _find(_table(features, gate=gate), x, features * size)
    return None if best is None else _shape(best, best.depth, 1, gate=gate)


def shape_in_parts(x: torch.Tensor, features: int) -> Shape | None:
    """How to split a product over K; None: it is better whole."""
    tokens, size = x.shape
    best = _find(_EARLY_PARTS if HOPPER else _PARTS, x, features) if _fits(x) else None
    if best is None:
        return None
    tiles = triton.cdiv(features, best.features) * triton.cdiv(tokens, best.tokens)
    parts = best.parts or pow2(min(8, _PROGRAMS // tiles) + 1) // 2
    while parts > 1 and size % (parts * LINE):
        parts //= 2
    if parts < 2:
        return None
    return _shape(best, best.depth if size // parts % best.depth == 0 else LINE, parts, gate=False)


def _table(features: int, *, gate: bool) -> tuple[_Best, ...]:
    if features > MAX_FEATURES:
        return _EARLY_OUTPUT if HOPPER and not gate else ()
    return (_EARLY_GATED if gate else _EARLY_WHOLE) if HOPPER else (_GATED if gate else _WHOLE)


def result_of(x: torch.Tensor, features: int, shape: Shape) -> torch.Tensor:
    """Where a product goes: ``[T, N]``, or its parts ``[S, T, N]`` in fp32."""
    if shape.parts > 1:
        return torch.empty((shape.parts, x.shape[0], features), dtype=torch.float32, device=x.device)
    return torch.empty((x.shape[0], features), dtype=x.dtype, device=x.device)


def _fits(x: torch.Tensor) -> bool:
    return x.dtype != torch.float32 and x.shape[0] > (0 if HOPPER else 1)


def _find(table: tuple[_Best, ...], x: torch.Tensor, most: int) -> _Best | None:
    tokens, size = x.shape
    fit = (best for best in table if tokens <= best.most_tokens and most <= best.most and size >= best.least_size)
    return next(fit, None)


def _shape(best: _Best, depth: int, parts: int, *, gate: bool) -> Shape | None:
    """With as many of the stages as the device has shared memory for; None: not even two."""
    rows = best.features * (2 if gate else 1)
    memory = shared_memory() - HOPPER * (_KNOWN + gate * _TURNED)
    stages = min(best.stages, memory // ((rows + best.tokens) * depth * 2))
    return None if stages < 2 else Shape(best.features, best.tokens, depth, parts, best.warps, stages, HOPPER)
