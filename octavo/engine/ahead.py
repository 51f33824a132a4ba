"""What every engine imports and sets up, for a process that has time before it is told which one it will be.

Two threads do beside torch's import what needs no interpreter: the driver makes the GPU's context, and Triton reads its
own half gigabyte, whose hash is a part of each kernel's name, and compiles the piece of C that loads kernels.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec

from octavo.platform.lean_torch import import_torch

MODULES = (
    "octavo.engine.assemble",
    "octavo.models.decoder",
    "octavo.weights.load",
    "octavo.weights.source",
    "octavo.worker.assemble",
    "octavo.worker.worker",
)
GPU_MODULES = ("octavo.kernels.triton.table", "octavo.worker.rehearsal")


def prepare(gpu: bool) -> None:
    """Import and set up. `gpu`: the engine may run on one, if there is one."""
    driver = Aside(start_driver) if gpu and find_spec("triton") else None
    triton = Aside(start_triton) if driver is not None and find_driver() else None
    import_torch()
    for name in MODULES:
        import_module(name)
    if triton is not None and driver is not None and driver.result() and triton.result():
        for name in GPU_MODULES:
            import_module(name)


class Aside:
    """A call in a thread of its own. What it raises is for the later call that needs the same to raise again."""

    def __init__(self, call: Callable[[], bool]) -> None:
        self._done = False
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True, name="octavo-ahead")
        self._thread.start()

    def _run(self, call: Callable[[], bool]) -> None:
        with suppress(Exception):
            self._done = call()

    def result(self) -> bool:
        """Wait; whether it went well."""
        self._thread.join()
        return self._done


def find_driver() -> "ctypes.CDLL | None":
    """The driver's library; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def start_driver() -> bool:
    """Make the first GPU's primary context, which torch will find made. False: there is no GPU."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch would have it
    cuda = find_driver()
    context = ctypes.c_void_p()
    return cuda is not None and not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)


def start_triton() -> bool:
    """Have Triton find out what it does once a process."""
    import_module("octavo.kernels.triton.kept").keep()
    # Its own backends are in its own folder; it need not read what all packages here say of themselves.
    os.environ.setdefault("TRITON_BACKENDS_IN_TREE", "1")
    from triton.backends.nvidia.driver import CudaUtils
    from triton.runtime.cache import triton_key

    CudaUtils()  # first, for it is the C compiler's to do where nobody has kept it
    triton_key()
    return True
