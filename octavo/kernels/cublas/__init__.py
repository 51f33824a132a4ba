"""Products by cuBLAS."""

from octavo.kernels.cublas.choice import linear, tune

__all__ = ["linear", "tune"]
