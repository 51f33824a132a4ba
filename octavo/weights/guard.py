"""Reading small files from an untrusted model folder: bounded, strict JSON, and no pickle under any name. No torch."""

import json
import re
from pathlib import Path
from typing import Any

from octavo.base.errors import ModelFileError

MAX_JSON_BYTES = 16 << 20
MAX_TEXT_BYTES = 1 << 20
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_REFUSAL = "is a pickle checkpoint, which can run code when opened; only safetensors and GGUF are read"


def refuse_pickle(path: Path) -> None:
    """Raises ModelFileError for a pickle by its name or by its first bytes (raw, in torch's zip, or in a tar)."""
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise ModelFileError(str(path), _REFUSAL)
    head = read_head(path, 512)
    # A safetensors header of 640 bytes begins with the same two bytes as a pickle; its brace comes at byte 8.
    safetensors = head[4:9] == b"\0\0\0\0{"
    raw_pickle = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and not safetensors
    if raw_pickle or head[:4] == b"PK\x03\x04" or head[257:262] == b"ustar":
        raise ModelFileError(str(path), _REFUSAL)


def read_head(path: Path, count: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(count)
    except OSError as error:
        raise ModelFileError(str(path), f"cannot be read: {error.strerror or error}") from None


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    """A UTF-8 text file of at most `limit` bytes. Raises ModelFileError."""
    raw = read_head(path, limit + 1)
    if len(raw) > limit:
        raise ModelFileError(str(path), f"is longer than the {limit} bytes allowed")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(str(path), f"is not UTF-8 at byte {error.start}") from None


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """A JSON object from a file; a key given twice is refused, and half a surrogate pair: no text may hold one.
    Raises ModelFileError."""
    text = read_text(path, limit)
    try:
        value = json.loads(text, object_pairs_hook=_unique)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ModelFileError(str(path), f"is not valid JSON: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise ModelFileError(str(path), "must hold a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)[:60]!r} appears twice")
    return value
