"""The compiled kernels, if this installation has them, and the threads they run on."""

import logging
import os
from functools import cache
from importlib import import_module
from typing import Any

from octavo.base.errors import ConfigError
from octavo.platform.limits import core_limit

log = logging.getLogger(__name__)

ISA_VARIABLE = "OCTAVO_CPU_ISA"  # avx512, avx2vnni, avx2, neon or plain; unset: the best that runs here

Native = Any
"""The extension module; its classes are described in csrc/module.cpp."""


@cache
def native() -> Native | None:
    """The extension module; None when it was not built. Says so once."""
    try:
        return import_module("octavo.kernels.cpu._native")
    except ImportError as error:
        log.warning(
            "the CPU kernels are not there (%s), so plain torch runs instead, several times slower; "
            "with a C++ compiler, `pip install nanobind` and `python -m octavo.kernels.cpu.build` build them",
            error,
        )
        return None


_machines: dict[int, Any] = {}


def machine(threads: int | None = None) -> Any:
    """The kernels on a pool of `threads` threads, one pool a process for each number; None: the pool last asked for.

    Raises ConfigError for an instruction set that cannot run here.
    """
    if threads is None:
        threads = next(reversed(_machines), core_limit())
    if threads in _machines:
        return _machines[threads]
    module = native()
    if module is None:
        raise ConfigError("the CPU kernels are not built; run `python -m octavo.kernels.cpu.build`")
    isa = os.environ.get(ISA_VARIABLE, "")
    try:
        return _machines.setdefault(threads, module.Machine(threads, True, isa))
    except ValueError as error:
        runs = ", ".join(module.instruction_sets())
        raise ConfigError(f"{ISA_VARIABLE}={isa}: {error}; this machine runs {runs}") from None
