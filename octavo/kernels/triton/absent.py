"""Triton's driver for a GPU that is not here: kernels can be compiled for it, not launched."""

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from octavo.kernels.triton.target import Target, assume

_WARP = 32


def compile_for(target: Target) -> None:
    """From now on this process compiles for that GPU. To be called before any kernel is imported."""
    assume(target)
    major, minor = target.capability
    driver.set_active(_Absent(GPUTarget("cuda", 10 * major + minor, _WARP)))


class _Absent(DriverBase):  # type: ignore[misc]
    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    @classmethod
    def is_active(cls) -> bool:
        return False  # never chosen by itself

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002 - Triton's word
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_benchmarker(self) -> Any:
        raise NotImplementedError
