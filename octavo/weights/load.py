"""Filling a model's parameters from a checkpoint, each exactly once."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from octavo.base.errors import ModelFileError
from octavo.nn.quant.base import Entry

_NAMED = 5  # names listed in an error


class Source(Protocol):
    """A checkpoint: pairs of a Hugging Face tensor name and the tensor, unread."""

    @property
    def tensors(self) -> Iterable[tuple[str, Entry]]: ...


class LoadTarget(Protocol):
    """Where one tensor goes (models/weight_map.Target)."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def pieces(self) -> tuple[str, ...]: ...

    @property
    def fill(self) -> Callable[[Entry], None]: ...


class Loadable(Protocol):
    """A model with a weight map."""

    def targets(self) -> dict[str, Any]: ...

    def canonical(self, name: str) -> str: ...

    def ignorable(self, name: str) -> bool: ...


def load_weights(model: Loadable, source: Source, *, path: str = "checkpoint") -> None:
    """Fill every parameter. Raises ModelFileError for a tensor that is missing, unknown, twice there or of a wrong
    shape; `path` names the checkpoint in the message."""
    targets: dict[str, LoadTarget] = model.targets()
    wanted = {piece for target in targets.values() for piece in target.pieces}
    filled: set[str] = set()
    unknown: list[str] = []
    with torch.no_grad():
        for name, entry in source.tensors:
            target = targets.get(model.canonical(name))
            if target is None:
                if not model.ignorable(name):
                    unknown.append(name)
                continue
            _check(path, name, entry, target, filled)
            target.fill(entry)
            filled.update(target.pieces)
    missing = sorted(wanted - filled)
    if missing:
        raise ModelFileError(path, f"{len(missing)} tensors are missing: {_listed(missing)}")
    if unknown:
        raise ModelFileError(path, f"{len(unknown)} tensors have no place in this model: {_listed(unknown)}")


def _check(path: str, name: str, entry: Entry, target: LoadTarget, filled: set[str]) -> None:
    shape = tuple(int(size) for size in entry.shape)
    if shape != target.shape:
        raise ModelFileError(path, f"tensor {name} has shape {list(shape)}, expected {list(target.shape)}")
    again = filled.intersection(target.pieces)
    if again:
        raise ModelFileError(path, f"tensor {name} fills {sorted(again)[0]} a second time")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name[:120] for name in names[:_NAMED]) + more
