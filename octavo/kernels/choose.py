"""Which implementation of each operation a device gets."""

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch

from octavo.base.errors import ConfigError
from octavo.base.registry import Registry
from octavo.kernels.ops import Ops
from octavo.kernels.ref.act import act_mul
from octavo.kernels.ref.attention import paged_attention
from octavo.kernels.ref.describe import describe
from octavo.kernels.ref.embed import embed
from octavo.kernels.ref.linear import linear, linear_parts, normed_linear
from octavo.kernels.ref.narrow import narrow
from octavo.kernels.ref.norm import add_rms_norm, rms_norm
from octavo.kernels.ref.penalize import penalize
from octavo.kernels.ref.prologue import qkv_prologue
from octavo.kernels.ref.sample import draw, forbid, greedy, write_tokens

Backend = Callable[[torch.device], Ops]

BACKENDS = Registry(
    "attention backend",
    {
        "auto": "octavo.kernels.choose:auto",
        "reference": "octavo.kernels.choose:reference",
        "native": "octavo.kernels.choose:native",
        "triton": "octavo.kernels.choose:triton",
    },
)

_TRITON_TABLE = "octavo.kernels.triton.table"
_NATIVE_TABLE = "octavo.kernels.cpu.table"


def choose(device: torch.device, attention_backend: str = "auto") -> Ops:
    """The table of operations for a device. An unknown backend raises UnknownName."""
    backend: Backend = BACKENDS.get(attention_backend)
    return backend(device)


def reference(device: torch.device) -> Ops:  # noqa: ARG001 - it runs anywhere
    """Plain torch for everything; the truth that other backends are tested against."""
    entries = {
        "rms_norm": rms_norm,
        "add_rms_norm": add_rms_norm,
        "act_mul": act_mul,
        "qkv_prologue": qkv_prologue,
        "paged_attention": paged_attention,
        "linear": linear,
        "linear_parts": linear_parts,
        "normed_linear": normed_linear,
        "embed": embed,
        "greedy": greedy,
        "draw": draw,
        "penalize": penalize,
        "narrow": narrow,
        "describe": describe,
        "forbid": forbid,
        "write_tokens": write_tokens,
    }
    absent = dict.fromkeys(("self_attention", "ahead", "compiler", "tune"))
    return Ops(**entries, **absent, names=dict.fromkeys(entries, "reference"))  # type: ignore[arg-type]


def triton(device: torch.device) -> Ops:
    """Triton kernels laid over the reference. Needs CUDA, or Triton's interpreter."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(f"attention backend 'triton' needs a CUDA device, this one is {device.type}; use 'reference'")
    if not _have_triton():
        raise ConfigError("attention backend 'triton' needs the triton package; install it or use 'reference'")
    import_module("octavo.kernels.triton.kept").keep()
    table: Ops = import_module(_TRITON_TABLE).overlay(reference(device), device)
    return table


def native(device: torch.device) -> Ops:
    """The CPU kernels. They hold whole weights and layers (nn/quant/native.py, models/native.py), so the table has the
    reference for what those leave over."""
    from octavo.kernels.cpu.loader import native as module

    if device.type != "cpu":
        raise ConfigError(f"attention backend 'native' is for CPUs, this device is {device.type}; use 'auto'")
    if module() is None:
        raise ConfigError("attention backend 'native' is not built; run `python -m octavo.kernels.cpu.build`")
    table: Ops = import_module(_NATIVE_TABLE).overlay(reference(device))
    return table


def auto(device: torch.device) -> Ops:
    """The fastest table that runs here."""
    if device.type == "cuda" and _have_triton():
        return triton(device)
    from octavo.kernels.cpu.loader import native as module

    return native(device) if device.type == "cpu" and module() is not None else reference(device)


def _have_triton() -> bool:
    return find_spec("triton") is not None and find_spec(_TRITON_TABLE) is not None
