"""Weights out of GGUF files, named and laid out as a Hugging Face checkpoint has them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.base.errors import ModelFileError
from octavo.weights.gguf import GgufFile, GgufTensor
from octavo.weights.gguf_dequant import dequantise
from octavo.weights.gguf_names import NAMES, Fix, hf_name
from octavo.weights.gguf_types import BLOCK_TYPES
from octavo.weights.mapped import drop_pages, map_file
from octavo.weights.source import Entry, EntrySource
from octavo.weights.stage import Stage


@dataclass(frozen=True)
class GgufEntry:
    """One tensor in a mapped file, with what undoes the converter's change to it."""

    info: GgufTensor
    data: Tensor  # the whole file, uint8
    stage: Stage
    fix: Fix = "none"
    heads: int = 0  # of q or of k, where `fix` puts their rows back

    @property
    def shape(self) -> tuple[int, ...]:
        return self.info.shape

    @property
    def qtype(self) -> str:
        return BLOCK_TYPES[self.info.qtype].name

    @property
    def nbytes(self) -> int:
        return self.info.nbytes

    def load(self, dtype: torch.dtype) -> Tensor:
        wide = torch.float32 if self.fix == "minus_one" else dtype
        stored = self._rows()
        rows = self.stage.bring(stored.view(-1)).view(stored.shape)
        if self.fix.startswith("unpermute") and len(self.shape) > 1:
            rows = rows[self._order(self.stage.device)]
        values = dequantise(rows, self.info.qtype, wide).view(self.shape)
        if self.fix.startswith("unpermute") and len(self.shape) == 1:
            values = values[self._order(self.stage.device)]
        return (values - 1.0).to(dtype) if self.fix == "minus_one" else values

    def raw(self) -> Tensor:
        """The stored blocks of a matrix ``[rows, row bytes]``, rows in Hugging Face order."""
        rows = self._rows()
        if self.fix.startswith("unpermute") and len(self.shape) > 1:
            return rows[self._order("cpu")]
        return rows

    def forget(self) -> None:
        """The tensor has been read and will not be for a while: its pages need not stay in memory."""
        drop_pages(self.data[self.info.offset : self.info.offset + self.info.nbytes])

    def _rows(self) -> Tensor:
        block = BLOCK_TYPES[self.info.qtype]
        piece = self.data[self.info.offset : self.info.offset + self.info.nbytes]
        return piece.view(-1, self.shape[-1] // block.values * block.size)

    def _order(self, device: torch.device | str) -> Tensor:
        """Which stored row each row comes from: the converter interleaved the two halves of every head."""
        rows = torch.arange(self.shape[0], device=device)
        return rows.view(self.heads, -1, 2).transpose(1, 2).reshape(-1)


class GgufSource(EntrySource):
    """The tensors of a GGUF model, under Hugging Face names."""

    def __init__(
        self,
        file: GgufFile,
        config: dict[str, Any],
        *,
        device: torch.device | str = "cpu",
        progress: bool | None = None,
    ) -> None:
        arch = file.metadata["general.architecture"]
        if arch not in NAMES:
            raise ModelFileError(str(file.path), f"GGUF architecture {str(arch)[:40]!r} is not known")
        maps = {path: map_file(path, path.stat().st_size) for path in {t.path for t in file.tensors.values()}}
        heads = {"unpermute_q": config["num_attention_heads"], "unpermute_k": config["num_key_value_heads"]}
        entries: dict[str, Entry] = {}
        stage = Stage(device)
        for tensor in sorted(file.tensors.values(), key=lambda tensor: (str(tensor.path), tensor.offset)):
            try:
                named = hf_name(arch, tensor.name)
            except KeyError:
                raise ModelFileError(
                    str(tensor.path), f"tensor {tensor.name!r} is none that a {arch} model has"
                ) from None
            if named is None:
                continue
            name, fix = named
            count = heads.get(fix, 0)
            if tensor.offset + tensor.nbytes > len(maps[tensor.path]):
                raise ModelFileError(str(tensor.path), "became shorter while being read")
            if count and tensor.shape[0] % (2 * count):
                raise ModelFileError(
                    str(tensor.path), f"tensor {tensor.name!r} has {tensor.shape[0]} rows for {count} heads"
                )
            entries[name] = GgufEntry(tensor, maps[tensor.path], stage, fix, count)
        super().__init__(entries, progress)
