"""Weights out of one or several safetensors files."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from octavo.base.errors import ModelFileError
from octavo.weights.folder import INDEX, shard_map
from octavo.weights.mapped import drop_pages, map_file
from octavo.weights.safetensors_file import DTYPE_BYTES, SafeTensor, read_safetensors
from octavo.weights.source import Entry, EntrySource
from octavo.weights.stage import Stage

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class SafetensorsEntry:
    """One tensor in a mapped file."""

    info: SafeTensor
    data: Tensor  # the whole file, uint8
    stage: Stage

    @property
    def shape(self) -> tuple[int, ...]:
        return self.info.shape

    @property
    def qtype(self) -> str:
        return self.info.dtype

    @property
    def nbytes(self) -> int:
        return self.info.nbytes

    def load(self, dtype: torch.dtype) -> Tensor:
        stored = _DTYPES.get(self.info.dtype)
        if stored is None:
            readable = ", ".join(_DTYPES)
            raise ModelFileError(
                str(self.info.path), f"tensor {self.info.name!r} is stored as {self.info.dtype}; read are {readable}"
            )
        piece = self.stage.bring(self._bytes())
        width = DTYPE_BYTES[self.info.dtype]
        if piece.storage_offset() % width or piece.data_ptr() % width:
            piece = piece.clone()  # a header of odd length leaves the data unaligned
        values = piece.view(stored).view(self.shape).to(dtype)
        # The mapped pages are read-only and go with the file: hand out memory of its own.
        return values.clone() if values.data_ptr() == self._bytes().data_ptr() else values

    def raw(self) -> Tensor:
        rows = self.shape[0] if len(self.shape) > 1 else 1
        return self._bytes().view(rows, -1) if self.nbytes else self._bytes().view(rows, 0)

    def forget(self) -> None:
        """The tensor has been read and will not be for a while: its pages need not stay in memory."""
        drop_pages(self._bytes())

    def _bytes(self) -> Tensor:
        return self.data[self.info.offset : self.info.offset + self.info.nbytes]


class SafetensorsSource(EntrySource):
    """The tensors of all files; where there is an index, each comes from the file that the index names."""

    def __init__(
        self, paths: tuple[Path, ...], *, device: torch.device | str = "cpu", progress: bool | None = None
    ) -> None:
        index = paths[0].parent / INDEX
        owners = shard_map(index) if len(paths) > 1 and index.is_file() else None
        entries: dict[str, Entry] = {}
        stage = Stage(device)
        for path in paths:
            tensors = read_safetensors(path)
            data = map_file(path, path.stat().st_size)
            for name, info in tensors.items():
                if owners is not None and owners.get(name) != path.name:
                    continue
                if name in entries:
                    raise ModelFileError(str(path), f"tensor {name[:80]!r} is in another file too")
                entries[name] = SafetensorsEntry(info, data, stage)
        missing = sorted(owners.keys() - entries.keys()) if owners is not None else []
        if missing:
            raise ModelFileError(str(index), f"names {missing[0][:80]!r}, which its shard does not hold")
        super().__init__(entries, progress)
