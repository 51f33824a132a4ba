"""A SentencePiece file (``tokenizer.model``) as the keys from which text/gguf_tokenizer.py builds a back end.

The file is a small protobuf (sentencepiece_model.proto, google/sentencepiece 0.2): pieces with scores and kinds, and a
few numbers of the trainer and the normalizer. Only BPE is read, without normalization: what Llama, Mistral and Gemma
are. Nothing in the file is believed.
"""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from octavo.base.errors import ModelFileError

MAX_BYTES = 64 << 20
MAX_PIECES = 1_500_000

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of ModelProto
_PIECE, _SCORE, _KIND = 1, 2, 3  # of a piece; its kinds are numbered as GGUF's are
_MODEL_TYPE, _BPE = 3, 2  # of TrainerSpec
_IDS = {"unknown": (40, 0), "bos": (41, 1), "eos": (42, 2), "padding": (43, -1)}  # of TrainerSpec: field and default
_RULES, _PREFIX, _SQUEEZE = 2, 3, 4  # of NormalizerSpec


def read_keys(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """``tokenizer.ggml.*`` keys for `GgufVocabulary`. `config`: tokenizer_config.json, which says whether bos and eos
    are added. Raises ModelFileError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelFileError(str(path), f"larger than {MAX_BYTES >> 20} MiB")
        return _keys(path.read_bytes(), config)
    except OSError as error:
        raise ModelFileError(str(path), f"cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, struct.error) as error:
        raise ModelFileError(str(path), f"not a SentencePiece model that can be read: {error}") from None


def _keys(data: bytes, config: Mapping[str, Any]) -> dict[str, Any]:
    tokens: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for field, value in _fields(data):
        if field == _PIECES:
            piece = dict(_fields(value))
            tokens.append(str(piece.get(_PIECE, b""), "utf-8"))
            scores.append(struct.unpack("<f", piece.get(_SCORE, bytes(4)))[0])
            kinds.append(int(piece.get(_KIND, 1)))
            if len(tokens) > MAX_PIECES:
                raise ValueError(f"it has more than {MAX_PIECES} pieces")
        elif field == _TRAINER:
            trainer = dict(_fields(value))
        elif field == _NORMALIZER:
            normalizer = dict(_fields(value))
    if trainer.get(_MODEL_TYPE, 1) != _BPE:
        raise ValueError("it is no BPE model")
    if normalizer.get(_RULES) or normalizer.get(_SQUEEZE, 1):
        raise ValueError("it normalizes its text")
    keys: dict[str, Any] = {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": kinds,
        "add_space_prefix": bool(normalizer.get(_PREFIX, 1)),
        "add_bos_token": config.get("add_bos_token", True) is True,
        "add_eos_token": config.get("add_eos_token", False) is True,
    }
    ids = {name: _signed(trainer.get(field, default)) for name, (field, default) in _IDS.items()}
    keys |= {f"{name}_token_id": token for name, token in ids.items() if 0 <= token < len(tokens)}
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items()}


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message's fields. Raises ValueError."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 2, 5):
            size = 8 if kind == 1 else 4
            if kind == 2:
                size, at = _varint(data, at)
            if size > len(data) - at:
                raise ValueError("it ends early")
            value = data[at : at + size]
            at += size
        else:
            raise ValueError("it is no protobuf")
        yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it ends early")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("it is no protobuf")


def _signed(value: int) -> int:
    """An int32, which is written as 64 bits."""
    return value - (1 << 64) if value >> 63 else value
