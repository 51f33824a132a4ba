"""Choices of earlier starts, on disk.

An algorithm is bytes that mean the same to the same version of the library on the same kind of device (cublasLt.h, at
cublasLtMatmulAlgo_t). A digest stands beside them, since only the library could say what damaged ones mean.
"""

import ctypes
import hashlib
import re

import msgspec
import torch
from msgspec import Struct

from octavo.base import kept
from octavo.kernels.cublas.library import Algorithm

FOLDER = "products"
EDITION = 1
MOST = 4096  # sizes; of more the first are let go
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_SIZES = re.compile(r"([1-9]\d{0,8}) ([1-9]\d{0,8}) ([1-9]\d{0,8}) (bfloat16|float16)")

Sizes = tuple[int, int, int, torch.dtype]  # N, K, T


class _File(Struct, frozen=True):
    digest: str
    chosen: dict[str, str | None]  # by sizes: the algorithm's bytes in hex; null: cuBLAS's own choice


class KeptChoices:
    """Those of one kind of device and library, both said by `facts`."""

    def __init__(self, *facts: object) -> None:
        self._key = kept.key_of(EDITION, *facts)
        self._chosen = self._read()
        self._is_new = False

    def __contains__(self, sizes: Sizes) -> bool:
        return sizes in self._chosen

    def __getitem__(self, sizes: Sizes) -> Algorithm | None:
        return self._chosen[sizes]

    def tell(self, sizes: Sizes, algorithm: Algorithm | None) -> None:
        """What was measured now; on disk with the next `write`."""
        self._chosen[sizes] = algorithm
        self._is_new = True

    def write(self) -> None:
        """With what others have written since."""
        if not self._is_new:
            return
        self._is_new = False
        self._chosen = {**self._read(), **self._chosen}
        chosen = {_text(sizes): _hex(self._chosen[sizes]) for sizes in list(self._chosen)[-MOST:]}
        kept.remember(FOLDER, self._key, _File(_digest(chosen), chosen))

    def _read(self) -> dict[Sizes, Algorithm | None]:
        file = kept.recall(FOLDER, self._key, _File)
        if file is None or len(file.chosen) > MOST or file.digest != _digest(file.chosen):
            return {}
        try:
            return {_sizes(text): _algorithm(given) for text, given in file.chosen.items()}
        except ValueError:
            return {}


def _digest(chosen: dict[str, str | None]) -> str:
    return hashlib.sha256(msgspec.json.encode(chosen)).hexdigest()


def _text(sizes: Sizes) -> str:
    *numbers, dtype = sizes
    return " ".join([*map(str, numbers), str(dtype).removeprefix("torch.")])


def _sizes(text: str) -> Sizes:
    found = _SIZES.fullmatch(text)
    if found is None:
        raise ValueError(text)
    features, size, tokens, dtype = found.groups()
    return int(features), int(size), int(tokens), _DTYPES[dtype]


def _hex(algorithm: Algorithm | None) -> str | None:
    return None if algorithm is None else bytes(algorithm).hex()


def _algorithm(given: str | None) -> Algorithm | None:
    if given is None:
        return None
    data = bytes.fromhex(given)
    if len(data) != ctypes.sizeof(Algorithm):
        raise ValueError(given)
    return Algorithm.from_buffer_copy(data)
