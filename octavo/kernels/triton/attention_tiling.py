"""How the queries of a step and what they see are cut for prefill attention.

Legend: R rows, H heads, G heads a KV head, D head dim; a line is a query of one head.
"""

from dataclasses import dataclass

import torch

from octavo.kernels.triton.common import pow2, shared_memory

MAX_PIECES = 32
FEW_LINES = 64  # of a tile where they are all there is, or where head dim or shared memory leave no room for more
ROOMY = 230_000  # bytes of shared memory with which the tiles that are best on an H200 fit
PARTS_BYTES = 64 << 20  # of pieces yet to be added up, for the sake of a lone tile
LEAST_PIECE = 512  # tokens; shorter pieces cost more in starting and adding up than they save


def queries_of(tokens: int, group: int, dtype_bytes: int, head_dim: int) -> int:
    """Queries in one tile, for steps of so many tokens and `group` heads a KV head."""
    if dtype_bytes == 4:
        lines = 32
    elif head_dim > 128 or shared_memory() < ROOMY or tokens * group <= FEW_LINES:
        lines = FEW_LINES
    else:
        lines = 128
    return max(1, lines // group)


def max_tiles(tokens: int, rows: int, queries: int) -> int:
    """Tiles that a step may have: a row that has any has two tokens at least."""
    return tokens // queries + min(rows, tokens // 2)


@dataclass(frozen=True, slots=True)
class Heads:
    """What tiles depend on beside the step: KV heads, query heads of each, and their dim."""

    kv_heads: int
    group: int
    dim: int
    dtype_bytes: int


@dataclass(frozen=True, slots=True)
class Tiling:
    """How steps of some number of tokens are cut: queries of a tile, pieces of what it sees at most, and the programs
    that fill the device."""

    queries: int
    most: int
    busy: int
    kv_heads: int
    least: int  # tokens of a piece

    def pieces(self, num_tiles: int, longest: int) -> int:
        """Pieces for so many tiles, of which none sees more than `longest` tokens."""
        wanted = self.busy // (self.kv_heads * max(1, num_tiles))
        return max(1, min(wanted, self.most, -(-longest // self.least)))


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a step. `running` int32 ``[R + 4]``: their running count, then the pieces of each, and two zeros,
    with which programs of attention_twins count what they have drawn; `most`: a bound of the count."""

    running: torch.Tensor
    most: int
    tiling: Tiling


def tiling(tokens: int, heads: Heads, programs: int) -> Tiling:
    """`programs` keep the device full.

    Most tokens of a small step may be of rows without tiles: then a lone tile has all programs for its pieces, as far
    as what these leave behind stays small.
    """
    tokens = max(1, tokens)
    queries = queries_of(tokens, heads.group, heads.dtype_bytes, heads.dim)
    lines = queries * heads.group
    # A wide tile takes a multiprocessor alone: a program too many is a second round.
    busy = max(1, programs // 2) if lines > FEW_LINES else programs
    alone = min(busy // heads.kv_heads, PARTS_BYTES // (tokens * 4 * heads.kv_heads * heads.group * heads.dim))
    most = min(MAX_PIECES, max(1, busy // (heads.kv_heads * -(-tokens // queries)), alone))
    least = max(LEAST_PIECE, key_tile(heads.dtype_bytes, heads.dim, padded(lines)))
    return Tiling(queries, most, busy, heads.kv_heads, least)


def padded(lines: int) -> int:
    return max(16, pow2(lines))


def key_tile(dtype_bytes: int, head_dim: int, lines: int) -> int:
    """Cached tokens in one tile, against so many lines."""
    if dtype_bytes == 4:
        return 32
    if shared_memory() < ROOMY:
        return 64 if head_dim <= 128 else 32
    return 128 if head_dim <= 128 and lines > FEW_LINES else 64
