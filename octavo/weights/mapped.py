"""A file as a read-only tensor of bytes, mapped rather than read."""

import ctypes
import mmap
import warnings
from pathlib import Path

import torch
from torch import Tensor

from octavo.base.errors import ModelFileError


def map_file(path: Path, expected_bytes: int) -> Tensor:
    """The bytes of `path` ``[size]`` (uint8). Never write into it: the pages are mapped read-only.

    The size must be what the header was checked against. Raises ModelFileError.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if size != expected_bytes:
                raise ModelFileError(str(path), f"changed from {expected_bytes} to {size} bytes while being read")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else None
    except OSError as error:
        raise ModelFileError(str(path), f"cannot be read: {error.strerror or error}") from None
    if data is None:
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        # torch warns that a read-only buffer could be written through the tensor; nobody does.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(data, dtype=torch.uint8)


def drop_pages(data: Tensor) -> None:
    """Let go of the memory behind a part of a mapped file; the next access reads it again. For `map_file`'s tensors
    only: of other memory it would lose the contents."""
    page = mmap.PAGESIZE
    start = -(-data.data_ptr() // page) * page
    length = (data.data_ptr() + data.nbytes) // page * page - start
    if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
        madvise = ctypes.CDLL(None).madvise
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)
