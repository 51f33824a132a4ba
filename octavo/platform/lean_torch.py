"""torch without what an engine never uses: half of the time that its import takes, and 35 MB.

What torch imports last, for those who export, quantize, train or test with it, stays out until an attribute of it is
asked for; then it is imported as ever. Only for a process of our own, and only for versions of torch that were tried.
"""

import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

TRIED = ("2.13.",)
"""Versions whose own import asks nothing of LATER, so that no circle opens in the middle of it."""
TRIED_WITH_GPU = ("2.11.",)
"""Those with which an engine on a GPU was seen to start and answer so, its steps captured."""

LATER = frozenset(
    f"torch.{name}"
    for name in (
        "_higher_order_ops",
        "_meta_registrations",
        "_native",
        "ao",
        "autograd.gradcheck",
        "compiler",
        "distributed._meta_registrations",
        "distributions",
        "export",
        "func",
        "masked",
        "nested",
        "nn.intrinsic",
        "nn.qat",
        "nn.quantizable",
        "nn.quantized",
        "optim",
        "profiler",
        "quantization",
        "testing",
        "testing._comparison",
        "utils.data",
    )
) | {
    "pynvml",  # where it is installed: torch asks it for a GPU's temperature and the like
    "torchgen.model",
}
FIRST = ("torch.nested", "torch.func", "torch.compiler")
"""Run before any other of LATER, in torch's own order: what they import of torch.fx has circles that open otherwise."""
HANDED_ON = {
    "torch._higher_order_ops": ("cond", "while_loop"),
    "torch.autograd.gradcheck": ("gradcheck", "gradgradcheck"),
    "torch.func": ("vmap",),
    "torch.testing._comparison": ("default_tolerances",),
}
"""Functions that torch takes from a module of LATER to show them as its own."""
COMPILER = frozenset(f"torch.{name}" for name in ("_decomp", "_dynamo", "_inductor", "_prims", "_refs"))
"""These take for granted that _meta_registrations have run."""
_GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
_lock = RLock()
_first = list(FIRST)  # those that have not run


def import_torch() -> bool:
    """Import torch, LATER left for later. False: all of it, for this torch was not tried, or not with a GPU."""
    lean = "torch" not in sys.modules and _version().startswith(TRIED if no_gpu() else TRIED_WITH_GPU)
    if lean:
        sys.meta_path.insert(0, _Finder())
    import torch

    if lean and hasattr(torch._C, "_set_generator_metaclass"):  # from torch 2.13 on
        # A side effect of _meta_registrations without which torch.Generator cannot be called; twice does no harm.
        from torch._opaque_base import OpaqueBaseMeta

        torch._C._set_generator_metaclass(OpaqueBaseMeta)
    return lean


class Later(ModuleType):
    """A module whose code runs when somebody wants something of it.

    importlib's own LazyLoader runs it as soon as the module is imported a second time, or a part of it.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)  # the import system's own questions, and those of who lists modules
        if name in HANDED_ON.get(self.__name__, ()):
            return partial(_call, self, name)
        run(self)
        return getattr(self, name)


def _call(module: ModuleType, name: str, *args: Any, **kwargs: Any) -> Any:
    run(module)
    return getattr(module, name)(*args, **kwargs)


def run(module: ModuleType | None) -> None:
    """Run the code of a module that waits, once."""
    if type(module) is not Later:
        return
    with _lock:
        names, _first[:] = _first[:], []
        for each in (*map(sys.modules.get, names), module):
            if type(each) is Later:
                each.__class__ = ModuleType  # type: ignore[assignment]
                loader: Loader = each.__loader__.real  # type: ignore[union-attr]
                loader.exec_module(each)


class _Loader(Loader):
    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Later(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Not yet."""


class _There(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It has run."""


class _Finder:
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name in COMPILER:
            run(sys.modules.get("torch._meta_registrations"))
            if name in sys.modules:  # they have brought it; what the import system finds there, it would run again
                there = sys.modules[name]
                there.__spec__ = ModuleSpec(name, _There(), is_package=True)
                there.__spec__.submodule_search_locations = list(there.__path__)
                return there.__spec__
        spec = PathFinder.find_spec(name, path, target) if name in LATER else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def no_gpu() -> bool:
    """Whether there is certainly none, as far as can be told without torch."""
    return sys.platform == "darwin" or (sys.platform == "linux" and not any(Path(each).exists() for each in _GPU_FILES))


def _version() -> str:
    """Of the torch that would be imported; empty if there is none."""
    found = find_spec("torch")
    try:
        text = Path(found.origin).with_name("version.py").read_text() if found is not None and found.origin else ""
    except OSError:
        return ""
    return text.partition("__version__ = '")[2].partition("'")[0]
