"""Reading a model's config.json: typed, bounded, with errors of one line that name the key. No torch."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from octavo.base.errors import ConfigError, UnknownName
from octavo.models.arch import Activation

MAX_LAYERS = 1024
MAX_SIZE = 1 << 20  # hidden, intermediate
MAX_HEADS = 8192
MAX_HEAD_DIM = 2048
MAX_VOCAB = 1 << 24
MAX_POSITION = 1 << 27
LARGE = 1e6  # of a multiplier or a cap
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
_DTYPES = ("float32", "float16", "bfloat16")
_LAYER_TYPES = ("full_attention", "sliding_attention")

T = TypeVar("T")


class Config:
    """A view of one JSON object. A key that is absent or null takes the default; without one it is an error."""

    def __init__(self, data: Mapping[str, Any], where: str = "config.json") -> None:
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where} must be a JSON object, found {type(data).__name__}")
        self.data = data
        self.where = where

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def child(self, key: str) -> "Config":
        """A nested object; an empty one if absent."""
        value = self.data.get(key)
        return Config({} if value is None else value, f"{self.where}: {key}")

    def wrong(self, key: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.where}: {key} must be {expected}, found {repr(self.data.get(key))[:60]}")

    def size(self, key: str, default: int | None = None, *, high: int = MAX_SIZE) -> int:
        """A count, from 1 to `high`."""
        return self.integer(key, default, low=1, high=high)

    def integer(self, key: str, default: int | None = None, *, low: int, high: int) -> int:
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None, *, low: float, high: float) -> float:
        """A finite number from `low` to `high`."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.wrong(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, key: str, *, low: float, high: float) -> float | None:
        return self.number(key, low=low, high=high) if self.has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def numbers(self, key: str, length: int, *, low: float, high: float) -> tuple[float, ...]:
        """A list of exactly `length` finite numbers."""
        value = self._value(key, None)
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
            raise self.wrong(key, f"a list of {length} numbers")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int | float) or not low <= item <= high:
                raise self.wrong(key, f"a list of numbers from {low:g} to {high:g}")
        return tuple(float(item) for item in value)

    def name(self, key: str, what: str, known: Mapping[str, T], default: str | None = None) -> T:
        """A word out of a table. Raises UnknownName with the nearest known words."""
        value = self.text(key, default)
        if value not in known:
            raise UnknownName(what, value, known)
        return known[value]

    def _value(self, key: str, default: Any) -> Any:
        value = self.data.get(key)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(f"{self.where}: {key} is missing")
        return value


def read_num_layers(config: Config, default: int | None) -> int:
    return config.size("num_hidden_layers", default, high=MAX_LAYERS)


def read_vocab_size(config: Config, default: int | None) -> int:
    return config.size("vocab_size", default, high=MAX_VOCAB)


def read_max_position(config: Config, default: int) -> int:
    return config.size("max_position_embeddings", default, high=MAX_POSITION)


def read_heads(
    config: Config,
    hidden_size: int,
    num_heads: int | None,
    num_kv_heads: int | None,
    head_dim: int | None,
) -> tuple[int, int, int]:
    """Query heads, key-value heads, head dim. The last three are the family's defaults; without one, K and V have as
    many heads as Q, and a head's dim is the hidden size over the heads."""
    heads = config.size("num_attention_heads", num_heads, high=MAX_HEADS)
    kv_heads = config.size("num_key_value_heads", num_kv_heads or heads, high=MAX_HEADS)
    if heads % kv_heads:
        raise ConfigError(
            f"{config.where}: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
        )
    if not config.has("head_dim") and head_dim is None and hidden_size % heads:
        raise ConfigError(
            f"{config.where}: hidden_size ({hidden_size}) must be a multiple of num_attention_heads ({heads})"
        )
    dim = config.size("head_dim", head_dim or max(1, hidden_size // heads), high=MAX_HEAD_DIM)
    return heads, kv_heads, dim


def read_activation(config: Config, key: str, default: str) -> Activation:
    return config.name(key, "activation", _ACTIVATIONS, default)


def read_eps(config: Config, default: float) -> float:
    return config.number("rms_norm_eps", default, low=0.0, high=1.0)


def read_dtype(config: Config) -> str:
    """The checkpoint's type: transformers 5 says `dtype`, older files `torch_dtype`."""
    key = "dtype" if config.has("dtype") else "torch_dtype"
    name = config.text(key, "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise UnknownName("dtype", name, _DTYPES)
    return name


def read_eos(config: Config, vocab_size: int) -> tuple[int, ...]:
    """End-of-text ids, given as one number or a list."""
    value = config.data.get("eos_token_id")
    items = value if isinstance(value, list) else [value]
    if len(items) > 1024:
        raise config.wrong("eos_token_id", "a list of at most 1024 ids")
    return tuple(item for item in items if type(item) is int and 0 <= item < vocab_size)


def read_window(config: Config, default: int | None = None) -> int | None:
    """Sliding window in tokens. An absent key takes the default; null means no window."""
    if "sliding_window" in config.data and config.data["sliding_window"] is None:
        return None
    if not config.has("sliding_window") and default is None:
        return None
    return config.size("sliding_window", default, high=MAX_POSITION)


def read_layer_types(config: Config, num_layers: int, default: Sequence[str]) -> list[str]:
    """`layer_types`, one word a layer, or the default."""
    value = config.data.get("layer_types")
    if value is None:
        return list(default)
    if not isinstance(value, list) or len(value) < num_layers:
        raise config.wrong("layer_types", f"a list of {num_layers} words")
    for item in value:
        if item not in _LAYER_TYPES:
            raise UnknownName("layer type", str(item), _LAYER_TYPES)
    return list(value[:num_layers])


def require(config: Config, key: str, expected: Any, why: str) -> None:
    """Refuse a setting that would silently give another model's results."""
    value = config.data.get(key)
    if value is not None and value != expected:
        raise ConfigError(f"{config.where}: {key} = {repr(value)[:40]} is not supported; {why}")


def inverse_sqrt(value: float) -> float:
    return 1.0 / math.sqrt(value)
