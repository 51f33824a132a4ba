"""cuBLASLt by its C interface: a product by an algorithm of one's own choice, which torch has no word for.

The library is the one that torch has loaded. Its matrices lie column by column, so ``[T, K] x [N, K] -> [T, N]`` is
``[K, N]^T x [K, T] -> [N, T]`` there. Constants and structures are those of cublasLt.h and library_types.h (CUDA 12 and
13).

Legend: T tokens, K input size, N output features.
"""

import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

import torch

WORKSPACE = 16 << 20  # bytes, for products whose K is split
_TYPES = {torch.bfloat16: 14, torch.float16: 2}  # CUDA_R_16BF, CUDA_R_16F
_FP32 = 0  # CUDA_R_32F
_COMPUTE_32F = 68
_TRANSA = 3  # CUBLASLT_MATMUL_DESC_TRANSA
_MAX_WORKSPACE = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
_ASKED = 16  # algorithms; it gives eight or so
_ALIGNED = 256  # bytes: what it takes for granted of addresses unless it is told otherwise


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: says nothing to anybody else."""

    _fields_ = [("data", c_uint64 * 8)]


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


class CublasError(RuntimeError):
    """The library refused a call."""


class Cublas:
    """The library on one device, with memory for what it works on beside its arguments. For one stream at a time."""

    def __init__(self, api: Any, device: torch.device) -> None:
        self._api = api
        api.cublasLtGetVersion.restype = c_size_t
        self.version = int(api.cublasLtGetVersion())
        self._handle = c_void_p()
        self.call("cublasLtCreate", byref(self._handle))
        self._workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        self._one, self._zero = c_float(1.0), c_float(0.0)
        self._layouts = lru_cache(maxsize=256)(lambda *shape: _Layouts(self, *shape))

    def call(self, name: str, *arguments: Any) -> None:
        """Raises CublasError."""
        code = getattr(self._api, name)(*arguments)
        if code:
            raise CublasError(f"{name}: cublasStatus_t {code}")

    def algorithms(self, x: torch.Tensor, weight: torch.Tensor) -> list[Algorithm]:
        """What the library thinks fit for a product, the best first by its own estimate."""
        found, count = (_Found * _ASKED)(), c_int()
        layouts, wishes = self._layouts_of(x, weight), c_void_p()
        self.call("cublasLtMatmulPreferenceCreate", byref(wishes))
        try:
            size = c_uint64(WORKSPACE)
            setting = _MAX_WORKSPACE, byref(size), c_size_t(8)
            self.call("cublasLtMatmulPreferenceSetAttribute", wishes, *setting)
            asked = *layouts.all, layouts.y, wishes, c_int(_ASKED), found, byref(count)
            self.call("cublasLtMatmulAlgoGetHeuristic", self._handle, *asked)
        finally:
            self.call("cublasLtMatmulPreferenceDestroy", wishes)
        return [each.algorithm for each in found[: count.value] if each.state == 0]

    def can(self, sizes: tuple[int, int, int, torch.dtype], algorithm: Algorithm) -> bool:
        """Whether an algorithm that was found for other sizes, or at another start, does for these (N, K, T)."""
        found, layouts = _Found(), self._layouts(*sizes)
        checked = *layouts.all, layouts.y, byref(algorithm), byref(found)
        code = self._api.cublasLtMatmulAlgoCheck(self._handle, *checked)
        return bool(code == 0 and found.state == 0 and found.workspace <= WORKSPACE)

    def multiply(self, x: torch.Tensor, weight: torch.Tensor, algorithm: Algorithm, out: torch.Tensor) -> torch.Tensor:
        """``[T, K] x [N, K] -> [T, N]`` into `out`, all `readable`, on the current stream."""
        layouts = self._layouts_of(x, weight)
        y = c_void_p(out.data_ptr())
        self.call(
            "cublasLtMatmul",
            self._handle,
            layouts.product,
            byref(self._one),
            c_void_p(weight.data_ptr()),
            layouts.weight,
            c_void_p(x.data_ptr()),
            layouts.x,
            byref(self._zero),
            y,
            layouts.y,
            y,
            layouts.y,
            byref(algorithm),
            c_void_p(self._workspace.data_ptr()),
            c_size_t(WORKSPACE),
            c_void_p(torch.cuda.current_stream(out.device).cuda_stream),
        )
        return out

    def _layouts_of(self, x: torch.Tensor, weight: torch.Tensor) -> "_Layouts":
        layouts: _Layouts = self._layouts(*weight.shape, x.shape[0], x.dtype)
        return layouts


class _Layouts:
    """What the library wants to know of a product's three matrices."""

    def __init__(self, library: Cublas, features: int, size: int, tokens: int, dtype: torch.dtype) -> None:
        self._library = library
        self.product, self.weight, self.x, self.y = (c_void_p() for _ in range(4))
        library.call("cublasLtMatmulDescCreate", byref(self.product), _COMPUTE_32F, _FP32)
        transposed = c_int(1)
        setting = _TRANSA, byref(transposed), c_size_t(4)
        library.call("cublasLtMatmulDescSetAttribute", self.product, *setting)
        for layout, rows, columns in (
            (self.weight, size, features),
            (self.x, size, tokens),
            (self.y, features, tokens),
        ):
            shape = c_uint64(rows), c_uint64(columns), c_int64(rows)
            library.call("cublasLtMatrixLayoutCreate", byref(layout), _TYPES[dtype], *shape)

    @property
    def all(self) -> tuple[c_void_p, ...]:
        return self.product, self.weight, self.x, self.y

    def __del__(self) -> None:
        self._library.call("cublasLtMatmulDescDestroy", self.product)
        for layout in (self.weight, self.x, self.y):
            self._library.call("cublasLtMatrixLayoutDestroy", layout)


def readable(*matrices: torch.Tensor) -> bool:
    """Whether it can work with them as they lie."""
    return all(each.is_contiguous() and each.data_ptr() % _ALIGNED == 0 and each.dtype in _TYPES for each in matrices)


def cublas(device: torch.device) -> Cublas | None:
    """The library on a device; None where torch has brought none along, or memory is short."""
    major = (torch.version.cuda or "").partition(".")[0]
    try:
        return Cublas(ctypes.CDLL(f"libcublasLt.so.{major}"), device)
    except (OSError, AttributeError, CublasError, torch.OutOfMemoryError):
        return None
