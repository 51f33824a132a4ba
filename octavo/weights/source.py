"""Where weights come from: one protocol over safetensors, GGUF and dummy weights.

A source streams ``(Hugging Face name, Entry)`` in file order, one tensor at a time; an Entry turns into a tensor only
when it is asked to, so the peak is one tensor above the model itself.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from tqdm import tqdm

from octavo.base.errors import ModelFileError
from octavo.kernels.entry import Entry as Unread
from octavo.weights.facts import ModelFiles


class Entry(Unread, Protocol):
    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        ...


def open_source(
    files: ModelFiles, *, seed: int = 0, device: torch.device | str = "cpu", progress: bool | None = None
) -> "EntrySource":
    """The source of a model's weights.

    `device` is where tensors come out, `seed` is for dummy weights. `progress` shows a bar; None shows it on a
    terminal only. All headers are read and checked here. Raises ModelFileError.
    """
    from octavo.weights.dummy import DummySource
    from octavo.weights.source_gguf import GgufSource
    from octavo.weights.source_safetensors import SafetensorsSource

    if files.format == "dummy":
        return DummySource(files.arch, seed, device=device, progress=progress)
    if files.format == "safetensors":
        return SafetensorsSource(files.weight_files, device=device, progress=progress)
    if files.gguf is None:
        raise ModelFileError(str(files.path), "has no GGUF header")
    return GgufSource(files.gguf, files.config, device=device, progress=progress)


class EntrySource:
    """What all sources share: named entries, and a bar over their bytes."""

    def __init__(self, entries: dict[str, Entry], progress: bool | None) -> None:
        self.entries = entries
        self.progress = progress

    @property
    def tensors(self) -> Iterator[tuple[str, Entry]]:
        """Streams all tensors; each access starts anew."""
        total = sum(entry.nbytes for entry in self.entries.values())
        hidden = None if self.progress is None else not self.progress
        with tqdm(total=total, unit="B", unit_scale=True, desc="loading weights", disable=hidden) as bar:
            for name, entry in self.entries.items():
                yield name, entry
                bar.update(entry.nbytes)
