"""A bounded reader of GGUF headers, versions 2 and 3 (spec: ggml/docs/gguf.md). No torch.

Nothing in the file is believed: each count, length, offset and product of dimensions is checked in Python integers
against what is left of the file and against a fixed maximum before it is used. All faults are ModelFileError.
"""

import itertools
import mmap
import os
import stat
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from octavo.base.errors import ModelFileError
from octavo.weights.gguf_types import BLOCK_TYPES, UNREAD_TYPES

try:
    _native: Any = import_module("octavo.kernels.cpu._native")
except ImportError:  # not built
    _native = None

MAGIC = b"GGUF"
MAX_KEYS = 4096
MAX_KEY_BYTES = 1024
MAX_TEXT_BYTES = 256 << 20  # of all metadata strings together, with their lengths
MAX_STRINGS = 1_500_000  # in all arrays together; Gemma's vocabulary and merges are 780,000
MAX_NUMBERS = 1 << 24  # in all arrays together
MAX_TENSORS = 1 << 16
MAX_TENSOR_NAME_BYTES = 256
MAX_DIMS = 4
MAX_VALUES = 1 << 48  # in one tensor
MIN_ALIGNMENT, MAX_ALIGNMENT, DEFAULT_ALIGNMENT = 8, 1 << 16, 32

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_FEW = 64  # strings that are not worth a call of the compiled walk
_HEADER_BYTES = 24  # magic, version, number of tensors, number of keys
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NAMES = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "<u1", None, None, "<u8", "<i8", "<f8")  # by value type
_NUMBERS = {kind: np.dtype(name) for kind, name in enumerate(_NAMES) if name is not None}


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies. `shape` is row-major as in torch (the file stores it the other way round)."""

    path: Path
    name: str
    shape: tuple[int, ...]
    qtype: int  # ggml type id, a key of BLOCK_TYPES
    offset: int  # bytes from the start of the file
    nbytes: int


class Strings(Sequence[str]):
    """An array of strings, decoded when asked for: a vocabulary has hundreds of thousands, and few who read a header
    want them. Bytes that are not UTF-8 become the replacement character."""

    def __init__(self, raw: bytes, count: int) -> None:
        self._raw = raw
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self.tolist()[index]

    def pick(self, places: Iterable[int]) -> list[str]:
        """The strings at ascending `places`; the others are passed over."""
        texts, next_place, at = [], 0, 0
        for place in places:
            start = _behind(self._raw, at, len(self._raw), place - next_place) + 8
            at = start + _U64.unpack_from(self._raw, start - 8)[0]
            next_place = place + 1
            texts.append(self._raw[start:at].decode("utf-8", "replace"))
        return texts

    def tolist(self) -> list[str]:
        if _native is not None:
            found: list[str] = _native.read_strings(self._raw, self._count)
            return found
        texts, at = [], 0
        for _ in range(self._count):
            start = at + 8
            at = start + _U64.unpack_from(self._raw, at)[0]
            texts.append(self._raw[start:at].decode("utf-8", "replace"))
        return texts


@dataclass(frozen=True)
class GgufFile:
    """A checked header. Metadata arrays of strings are `Strings`, arrays of numbers are numpy arrays."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    file_bytes: int


def read_gguf(path: Path) -> GgufFile:
    """The header of a GGUF file, wholly checked. Raises ModelFileError."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(str(path), "is not a regular file")
            if status.st_size < _HEADER_BYTES:
                raise ModelFileError(str(path), f"is too short for a GGUF header ({status.st_size} bytes)")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data).read()
    except OSError as error:
        raise ModelFileError(str(path), f"cannot be read: {error.strerror or error}") from None


def _behind(data: mmap.mmap | bytes, begin: int, end: int, count: int) -> int:
    """The byte behind `count` length-prefixed strings; -1 if one of them passes `end`."""
    if _native is not None and count > _FEW:
        view = np.frombuffer(data, dtype=np.uint8)
        return int(_native.skip_strings(view.ctypes.data, begin, end, count))
    at, unpack = begin, _U64.unpack_from
    for _ in range(count):
        if at + 8 > end:
            return -1
        at += 8 + unpack(data, at)[0]
        if at > end:
            return -1
    return at


class _Reader:
    """A cursor over the mapped file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.end = len(data)
        self.at = 0
        self.strings_left = MAX_STRINGS
        self.text_left = MAX_TEXT_BYTES
        self.numbers_left = MAX_NUMBERS

    def read(self) -> GgufFile:
        num_tensors, num_keys = self.header()
        metadata = self.metadata(num_keys)
        alignment = self.alignment(metadata)
        tensors = self.tensors(num_tensors, alignment)
        return GgufFile(self.path, metadata, tensors, self.end)

    def fail(self, reason: str) -> ModelFileError:
        return ModelFileError(str(self.path), reason)

    def need(self, count: int, what: str) -> None:
        if count > self.end - self.at:
            raise self.fail(f"ends inside {what} (byte {self.at} of {self.end})")

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = _U32.unpack_from(self.data, self.at)
        self.at += 4
        return int(value)

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = _U64.unpack_from(self.data, self.at)
        self.at += 8
        return int(value)

    def name(self, limit: int, what: str) -> str:
        """A string that must be valid UTF-8, printable, and short: a key or a tensor's name."""
        length = self.u64(what)
        if not 0 < length <= limit:
            raise self.fail(f"{what} is {length} bytes long, allowed are 1 to {limit}")
        self.need(length, what)
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8: {raw[:40]!r}") from None
        if not name.isprintable():  # it is shown in errors
            raise self.fail(f"{what} has control characters: {raw[:40]!r}")
        return name

    def header(self) -> tuple[int, int]:
        if self.data[:4] != MAGIC:
            raise self.fail(f"is not a GGUF file (it begins with {self.data[:4]!r})")
        self.at = 4
        version = self.u32("the header")
        if version and version & 0xFFFF == 0:
            raise self.fail("is a big-endian GGUF file; only little-endian ones are read")
        if version not in (2, 3):
            raise self.fail(f"has GGUF version {version}; versions 2 and 3 are read")
        num_tensors, num_keys = self.u64("the header"), self.u64("the header")
        if num_tensors > MAX_TENSORS:
            raise self.fail(f"claims {num_tensors} tensors, allowed are {MAX_TENSORS}")
        if num_keys > MAX_KEYS:
            raise self.fail(f"claims {num_keys} metadata keys, allowed are {MAX_KEYS}")
        return num_tensors, num_keys

    def metadata(self, num_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(num_keys):
            key = self.name(MAX_KEY_BYTES, f"metadata key {index}")
            if key in metadata:
                raise self.fail(f"metadata key {key[:80]!r} appears twice")
            metadata[key] = self.value(key[:80])
        return metadata

    def value(self, key: str) -> Any:
        kind = self.u32(key)
        if kind == _STRING:
            return self.strings(1, key).tolist()[0]
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _NUMBERS:
            raise self.fail(f"{key} has unknown value type {kind}")
        return self.numbers(kind, 1, key).item()

    def array(self, key: str) -> Any:
        kind, count = self.u32(key), self.u64(key)
        if kind == _STRING:
            return self.strings(count, key)
        if kind not in _NUMBERS:
            raise self.fail(f"{key} is an array of unknown or nested type {kind}")
        if count > self.numbers_left:
            raise self.fail(f"{key} claims {count} numbers, allowed are {MAX_NUMBERS} in the file")
        self.numbers_left -= count
        return self.numbers(kind, count, key)

    def numbers(self, kind: int, count: int, key: str) -> "np.ndarray[Any, Any]":
        size = _NUMBERS[kind].itemsize * count
        self.need(size, key)
        found = np.frombuffer(self.data[self.at : self.at + size], dtype=_NUMBERS[kind])
        self.at += size
        return found.astype(bool) if kind == _BOOL else found

    def strings(self, count: int, key: str) -> Strings:
        """`count` length-prefixed strings."""
        if count > self.strings_left:
            raise self.fail(f"{key} claims {count} strings, allowed are {MAX_STRINGS} in the file")
        self.strings_left -= count
        self.need(8 * count, key)
        begin, end = self.at, min(self.end, self.at + self.text_left)
        after = _behind(self.data, begin, end, count)
        if after < 0:
            raise self.fail(
                f"{key} (byte {begin}) holds strings that pass the end of the file, or the limit of "
                f"{MAX_TEXT_BYTES} bytes of text"
            )
        self.text_left -= after - begin
        self.at = after
        return Strings(self.data[begin:after], count)

    def alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        good = type(alignment) is int and MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT
        if not good or alignment & (alignment - 1):
            raise self.fail(f"general.alignment is {str(alignment)[:40]}, must be a power of two from 8 to 65536")
        return int(alignment)

    def tensors(self, count: int, alignment: int) -> dict[str, GgufTensor]:
        self.need(count * (8 + 1 + 4 + 8 + 4 + 8), "the tensor table")
        found = [self.tensor(index, alignment) for index in range(count)]
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for tensor in found:
            if tensor.name in tensors:
                raise self.fail(f"tensor {tensor.name!r} appears twice")
            offset = start + tensor.offset
            if offset + tensor.nbytes > self.end:
                raise self.fail(
                    f"tensor {tensor.name!r} ends at byte {offset + tensor.nbytes}, the file at {self.end}: "
                    "truncated or corrupt"
                )
            tensors[tensor.name] = replace(tensor, offset=offset)
        self.check_apart(tensors)
        return tensors

    def tensor(self, index: int, alignment: int) -> GgufTensor:
        """One line of the tensor table; the offset is still relative to the data section."""
        name = self.name(MAX_TENSOR_NAME_BYTES, f"tensor name {index}")
        rank = self.u32(name)
        if not 1 <= rank <= MAX_DIMS:
            raise self.fail(f"tensor {name!r} has {rank} dimensions, allowed are 1 to {MAX_DIMS}")
        dims = [self.u64(name) for _ in range(rank)]
        qtype, offset = self.u32(name), self.u64(name)
        block = BLOCK_TYPES.get(qtype)
        if block is None:
            known = ", ".join(known.name for known in BLOCK_TYPES.values())
            raise self.fail(f"tensor {name!r} has type {UNREAD_TYPES.get(qtype, qtype)}; the types read are {known}")
        values = 1
        for dim in dims:
            values *= dim
            if dim < 1 or values > MAX_VALUES:
                raise self.fail(f"tensor {name!r} has impossible dimensions {dims}")
        if dims[0] % block.values:
            raise self.fail(f"tensor {name!r} has rows of {dims[0]}, not a multiple of {block.name}'s {block.values}")
        if offset % alignment:
            raise self.fail(f"tensor {name!r} begins at {offset}, which is not aligned to {alignment}")
        return GgufTensor(self.path, name, tuple(reversed(dims)), qtype, offset, values // block.values * block.size)

    def check_apart(self, tensors: dict[str, GgufTensor]) -> None:
        ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for before, after in itertools.pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                raise self.fail(f"tensors {before.name!r} and {after.name!r} overlap")
