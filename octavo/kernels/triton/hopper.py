"""What Hopper alone has, by the names of Gluon, Triton's language for those who lay out shared memory themselves.

Bulk copies (the tensor memory accelerator) bring a tile to shared memory: one thread names it, hardware works out the
addresses, lays it down as the tensor cores read it, and gives zeros for rows that there are not. What a matrix is to
that hardware (address, rows, stride) goes along with a launch by value: nothing of it is kept.
"""

from typing import Any

import torch
from triton import knobs

from octavo.kernels.triton.target import target_here

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language._core import _unwrap_if_constexpr as known
    from triton.experimental.gluon.language._core import builtin
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_init,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    # The second are their names in Triton 3.6.
    bring = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
    meet = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

    @builtin
    def recast(memory: Any, dtype: Any, shape: Any, layout: Any, _semantic: Any = None) -> Any:
        """The same shared memory, cut otherwise; a method whose name changed with Triton."""
        return _semantic.memdesc_reinterpret(memory, known(dtype), [known(size) for size in shape], known(layout))

    # Gluon has no interpreter.
    HOPPER = target_here().capability[0] == 9 and not knobs.runtime.interpret
except (ImportError, AttributeError):  # a Triton that has moved them
    HOPPER = False

__all__ = [
    "HOPPER",
    "bring",
    "brings",
    "cache_tiles",
    "fence_async_shared",
    "gl",
    "gluon",
    "mbarrier",
    "meet",
    "readable",
    "recast",
    "tiles",
    "warpgroup_mma",
    "warpgroup_mma_init",
    "warpgroup_mma_wait",
]

_ALIGNED = 16  # bytes, of the first number and of a row's length
_TYPES = (torch.bfloat16, torch.float16)


def readable(matrix: torch.Tensor) -> bool:
    """Whether bulk copies can read it: numbers of 16 bits side by side in rows that begin at whole 16 bytes."""
    row = matrix.stride(0) * matrix.element_size()
    side_by_side = matrix.stride(1) == 1 and matrix.dtype in _TYPES
    return side_by_side and row % _ALIGNED == 0 and matrix.data_ptr() % _ALIGNED == 0


def brings(head_dim: int, block_size: int, dtype_bytes: int) -> bool:
    """Whether bulk copies bring the blocks of such a cache, and tensor cores read them as they are laid down."""
    return HOPPER and head_dim in (64, 128) and block_size in (8, 16, 32, 64) and dtype_bytes == 2


def cache_tiles(kv: torch.Tensor, columns: int) -> tuple[Any, int]:
    """A layer's cache ``[N, 2, H_kv, B, D]``, strided in its first dim alone, as a matrix of D columns to be read in
    tiles of a block's tokens; and the rows from one block to the next."""
    blocks, _, kv_heads, block_size, dim = kv.shape
    between = kv.stride(0) // dim
    rows = kv.as_strided(((blocks - 1) * between + 2 * kv_heads * block_size, dim), (dim, 1))
    return tiles(rows, [block_size, columns]), between


def tiles(matrix: torch.Tensor, block: list[int]) -> Any:
    """The matrix as a kernel's argument, to be read in tiles of that many rows and columns."""
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16 if matrix.dtype == torch.bfloat16 else gl.float16)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), block, layout)
