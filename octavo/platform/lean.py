"""A quicker start of torch where only its ready-made CPU operations run.

`torch` registers shape functions of all its operations in Python when it is imported, for tracing and compiling. An
engine on a CPU does neither, and the registrations are a quarter of the import. So their module is put in place empty;
the first who asks anything of it gets the real one.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "torch._meta_registrations"


class _Later(ModuleType):
    """Stands for the module until somebody looks inside."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        sys.modules.pop(NAME, None)
        real = importlib.import_module(NAME)
        return getattr(real, name)


def import_less(device: str) -> None:
    """Call before torch is imported, in a process of the engine's own. Nothing happens where there may be a GPU."""
    if "torch" in sys.modules or device not in ("auto", "cpu"):
        return
    if device == "auto" and (Path("/proc/driver/nvidia").exists() or Path("/dev/nvidiactl").exists()):
        return
    sys.modules[NAME] = _Later(NAME)
