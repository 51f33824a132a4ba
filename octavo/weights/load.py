"""Filling a model's parameters from a checkpoint, each exactly once."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from octavo.base.errors import ModelFileError
from octavo.kernels.entry import Entry

_NAMED = 5  # names listed in an error


class Source(Protocol):
    """A checkpoint: pairs of a Hugging Face tensor name and the tensor, unread."""

    @property
    def tensors(self) -> Iterable[tuple[str, Entry]]: ...


@dataclass(frozen=True, slots=True)
class Target:
    """Where one tensor goes, and the *pieces* of the model that it fills; see models/weight_map.py."""

    shape: tuple[int, ...]
    pieces: tuple[str, ...]
    fill: Callable[[Entry], None]


class Loadable(Protocol):
    """A model with a weight map."""

    def targets(self) -> dict[str, Target]:
        """By the tensors' canonical names."""
        ...


# A multimodal checkpoint keeps its text model under one of these; GPT-style exports leave `model.` out.
_PREFIX = re.compile(r"^(?:language_model\.model\.|model\.language_model\.|model\.)")
_IGNORED = re.compile(
    r"rotary_emb\.inv_freq$|\.masked_bias$|\.attn\.bias$"
    r"|^(?:model\.)?(?:vision_tower|multi_modal_projector|vision_model|audio_tower|embed_vision)\."
)
_ROOTS = ("embed_tokens.", "layers.", "norm.")


def canonical(name: str) -> str:
    """The name under which a weight map lists a checkpoint's tensor."""
    if name in ("lm_head.weight", "language_model.lm_head.weight"):
        return "lm_head.weight"
    bare = _PREFIX.sub("", name)
    return f"model.{bare}" if bare.startswith(_ROOTS) else name


def ignorable(name: str) -> bool:
    """Tensors that checkpoints carry and a text decoder does not need."""
    return _IGNORED.search(name) is not None


def load_weights(model: Loadable, source: Source, *, path: str = "checkpoint") -> None:
    """Fill every parameter. Raises ModelFileError for a tensor that is missing, unknown, twice there or of a wrong
    shape; `path` names the checkpoint in the message."""
    targets = model.targets()
    wanted = {piece for target in targets.values() for piece in target.pieces}
    filled: set[str] = set()
    unknown: list[str] = []
    with torch.no_grad():
        for name, entry in source.tensors:
            target = targets.get(canonical(name))
            if target is None:
                if not ignorable(name):
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


def _check(path: str, name: str, entry: Entry, target: Target, filled: set[str]) -> None:
    shape = tuple(int(size) for size in entry.shape)
    if shape != target.shape:
        raise ModelFileError(path, f"tensor {name} has shape {list(shape)}, expected {list(target.shape)}")
    again = filled.intersection(target.pieces)
    if again:
        raise ModelFileError(path, f"tensor {name} fills {sorted(again)[0]} a second time")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name[:120] for name in names[:_NAMED]) + more
