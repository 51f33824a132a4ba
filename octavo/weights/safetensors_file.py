"""The header of a safetensors file, wholly checked before a tensor is touched. No torch.

Format (github.com/huggingface/safetensors): 8 bytes of little-endian header length, a JSON header of
``name: {dtype, shape, data_offsets}``, then the data without holes.
"""

import os
import stat
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

import msgspec

from octavo.base.errors import ModelFileError
from octavo.weights.guard import refuse_pickle

MAX_HEADER_BYTES = 32 << 20  # the largest checkpoints have 2 MB
MAX_TENSORS = 1 << 18
MAX_DIMS = 8
DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


class _Info(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class SafeTensor:
    """Where one tensor lies; `offset` counts from the start of the file."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_safetensors(path: Path) -> dict[str, SafeTensor]:
    """The checked header of one file. Raises ModelFileError."""
    refuse_pickle(path)
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(str(path), "is not a regular file")
            length = int.from_bytes(file.read(8), "little")
            limit = min(MAX_HEADER_BYTES, status.st_size - 8)
            if not 2 <= length <= limit:
                raise ModelFileError(
                    str(path), f"claims a header of {length} bytes; the file and the limit allow 2 to {max(limit, 0)}"
                )
            header = file.read(length)
    except OSError as error:
        raise ModelFileError(str(path), f"cannot be read: {error.strerror or error}") from None
    infos = _decode(path, header)
    data_bytes = status.st_size - 8 - length
    tensors = {name: _tensor(path, name, info, 8 + length, data_bytes) for name, info in infos.items()}
    _check_cover(path, tensors, 8 + length, status.st_size)
    return tensors


def _decode(path: Path, header: bytes) -> dict[str, _Info]:
    if header.count(b":") > 8 * MAX_TENSORS:  # a tensor has four; more would only cost memory to decode
        raise ModelFileError(str(path), f"has a header with more fields than {MAX_TENSORS} tensors need")
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        if len(entries) > MAX_TENSORS:
            raise ModelFileError(str(path), f"holds {len(entries)} tensors, allowed are {MAX_TENSORS}")
        decoder = msgspec.json.Decoder(_Info)
        return {name: decoder.decode(raw) for name, raw in entries.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ModelFileError(str(path), f"has a header that cannot be read: {str(error)[:120]}") from None


def _tensor(path: Path, name: str, info: _Info, start: int, data_bytes: int) -> SafeTensor:
    width = DTYPE_BYTES.get(info.dtype)
    if width is None:
        raise ModelFileError(str(path), f"tensor {name[:80]!r} has the unknown type {info.dtype[:20]!r}")
    if len(info.shape) > MAX_DIMS or any(not 0 <= dim < 1 << 48 for dim in info.shape):
        raise ModelFileError(str(path), f"tensor {name[:80]!r} has impossible dimensions {str(info.shape)[:80]}")
    begin, end = info.data_offsets
    if not 0 <= begin <= end <= data_bytes:
        raise ModelFileError(
            str(path), f"tensor {name[:80]!r} lies at {begin} to {end} of {data_bytes} bytes: truncated or corrupt"
        )
    if prod(info.shape) * width != end - begin:
        raise ModelFileError(
            str(path), f"tensor {name[:80]!r} of shape {info.shape} and type {info.dtype} cannot be {end - begin} bytes"
        )
    return SafeTensor(path, name, info.dtype, tuple(info.shape), start + begin, end - begin)


def _check_cover(path: Path, tensors: dict[str, SafeTensor], start: int, end: int) -> None:
    """The data must be covered once, without holes; this also finds a name that was given twice."""
    ordered = sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes))
    for before, after in pairwise(ordered):
        if before.offset + before.nbytes != after.offset:
            raise ModelFileError(str(path), f"tensors {before.name[:60]!r} and {after.name[:60]!r} do not join up")
    covered = sum(tensor.nbytes for tensor in ordered)
    if covered != end - start:
        raise ModelFileError(str(path), f"has tensors for {covered} of {end - start} data bytes")
