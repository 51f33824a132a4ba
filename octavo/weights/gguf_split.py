"""A model cut into several GGUF files, `name-00001-of-00003.gguf` and so on, as llama.cpp's gguf-split makes them."""

import re
from dataclasses import replace
from pathlib import Path

from octavo.base.errors import ModelFileError
from octavo.weights.gguf import GgufFile, GgufTensor, read_gguf

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MAX_PARTS = 1000


def read_gguf_model(path: Path) -> GgufFile:
    """The header of a GGUF model; of a split one, the first part's metadata and every part's tensors."""
    first = read_gguf(path)
    count = first.metadata.get("split.count", 1)
    if type(count) is not int or not 1 < count <= MAX_PARTS:
        return first
    match = _PART.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise ModelFileError(
            str(path), f"is one of {count} parts, but is not named like name-00001-of-{count:05d}.gguf"
        )
    tensors: dict[str, GgufTensor] = {}
    parts = [read_gguf(part_path(path, number)) for number in range(1, count + 1)]
    for part in parts:
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise ModelFileError(str(part.path), f"tensor {min(twice)!r} is in another part too")
        tensors |= part.tensors
    return replace(parts[0], tensors=tensors, file_bytes=sum(part.file_bytes for part in parts))


def part_path(path: Path, number: int) -> Path:
    """The path of part `number`, counted from one, beside any part."""
    match = _PART.fullmatch(path.name)
    return path.with_name(f"{match[1]}-{number:05d}-of-{match[3]}.gguf") if match else path
