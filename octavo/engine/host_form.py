"""What weights and KV cache take on a CPU where the native kernels hold them. Arithmetic for `octavo plan`, no torch;
the engine itself asks its worker."""

from importlib.util import find_spec
from math import prod

from octavo.base.config import EngineConfig, Resolved
from octavo.engine.sizing import DTYPE_BYTES
from octavo.weights.facts import ModelFiles
from octavo.weights.gguf_types import BLOCK_TYPES

# Bytes of a value in kernels/cpu/csrc/format.h: codes and scales of a group of 32 values.
_FOUR, _FOUR_LEAST, _FIVE, _FIVE_LEAST, _SIX, _EIGHT = (size / 512 for size in (288, 320, 352, 384, 448, 544))
PACKED_BYTES = {
    "Q4_0": _FOUR,
    "Q4_1": _FOUR_LEAST,
    "Q5_0": _FIVE,
    "Q5_1": _FIVE_LEAST,
    "Q8_0": _EIGHT,
    "Q2_K": _EIGHT,
    "Q3_K": _EIGHT,
    "Q4_K": _FOUR_LEAST,
    "Q5_K": _FIVE_LEAST,
    "Q6_K": _SIX,
    "IQ4_NL": _FOUR,
    "IQ4_XS": _FOUR,
    "F16": 2.0,
    "BF16": 2.0,
    "F32": 4.0,
}
QUANTIZED_BYTES = {"int8": _EIGHT, "int4": _FOUR_LEAST}


def packs(config: EngineConfig, resolved: Resolved, files: ModelFiles) -> bool:
    """Whether the worker will hold this model packed."""
    wanted = resolved.device == "cpu" and resolved.dtype == "float32" and files.format != "dummy"
    return (
        wanted
        and config.device.attention_backend in ("auto", "native")
        and find_spec("octavo.kernels.cpu._native") is not None
    )


def weight_bytes(config: EngineConfig, resolved: Resolved, files: ModelFiles) -> int:
    """Bytes in memory. A token table that is not the output matrix too stays in the mapped file, and counts."""
    parameters = files.arch.num_parameters()
    if not packs(config, resolved, files):
        return parameters * DTYPE_BYTES[resolved.dtype]
    quantized = QUANTIZED_BYTES.get(config.model.quantization or "")
    if files.gguf is None:
        return int(parameters * (quantized or DTYPE_BYTES[files.arch.dtype]))
    total = 0.0
    for tensor in files.gguf.tensors.values():
        kind = BLOCK_TYPES[tensor.qtype].name
        floats = kind in ("F16", "BF16", "F32")
        total += prod(tensor.shape) * (quantized if quantized and floats else PACKED_BYTES[kind])
    return int(total)


def kv_dtype(config: EngineConfig, resolved: Resolved, files: ModelFiles) -> str:
    """Type of the KV cache: what was asked for, or by the rule of models/native.py."""
    asked = config.cache.kv_cache_dtype
    if asked != "auto":
        return asked
    if not packs(config, resolved, files):
        return resolved.dtype
    if files.gguf is None:
        exact = files.arch.dtype == "float32" and config.model.quantization is None
    else:
        matrices = [tensor for tensor in files.gguf.tensors.values() if len(tensor.shape) > 1]
        exact = all(BLOCK_TYPES[tensor.qtype].name == "F32" for tensor in matrices)
    return "float32" if exact else "float16"
