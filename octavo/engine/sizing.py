"""How much KV cache there is and how long a context fits in it. Arithmetic only, so `octavo plan` needs no torch.

A full-attention group keeps a block for every `block_size` tokens of a request. A sliding group keeps those that
its window touches, so its need stops growing with the length.
"""

from collections.abc import Sequence

from msgspec import Struct

from octavo.base.config import CacheConfig
from octavo.base.errors import ConfigError, NoRoom
from octavo.base.human import format_bytes
from octavo.base.specs import KVGroup, KVLayout, KVSpec, block_bytes, cache_specs, group_layers
from octavo.kv.capacity import blocks_alone, longest_alone

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
GIB = 1 << 30
MAX_BLOCKS = (1 << 31) - 1


class Sizing(Struct, frozen=True, kw_only=True):
    """The KV cache of one start. Lengths are in tokens."""

    layout: KVLayout
    max_model_len: int  # fitted: one request of this length has room
    notes: list[str]  # what was fitted, and why

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can own."""
        return self.layout.num_blocks - 1

    @property
    def total_bytes(self) -> int:
        return self.layout.num_blocks * self.layout.block_bytes

    @property
    def bytes_per_token(self) -> float:
        """What each further token of a long request costs: sliding groups have stopped growing."""
        full = sum(1 for group in self.layout.groups if group.spec.window is None)
        return full * self.layout.block_bytes / self.layout.block_size

    def concurrency(self, length: int) -> float:
        """How many decoding requests of `length` tokens have room at once, with nothing shared."""
        return self.usable_blocks / blocks_alone(self.layout, length)

    def tokens(self, length: int | None = None) -> int:
        """Tokens that the cache holds in requests of `length` (the longest context)."""
        length = self.max_model_len if length is None else length
        return int(self.concurrency(length) * length)


def asked_bytes(cache: CacheConfig, device: str, one_block: int) -> int | None:
    """Bytes of KV cache that the operator asked for, None to measure. The most exact wish wins."""
    if cache.num_gpu_blocks_override is not None:
        return cache.num_gpu_blocks_override * one_block
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes
    if device == "cpu" and cache.cpu_kvcache_space is not None:
        return int(cache.cpu_kvcache_space * GIB)
    return None


def size(
    specs: Sequence[KVSpec],
    *,
    dtype: str,
    block_size: int,
    capacity: int,
    max_model_len: int,
    remedy: str = "free memory or raise --gpu-memory-utilization",
) -> Sizing:
    """Cut `capacity` bytes into blocks and fit the context to them. `dtype` is the cache's.

    Raises NoRoom, with `remedy` in its line, only if not even one block for each group of layers fits.
    """
    groups = _groups(specs, dtype)
    one = block_bytes(groups, block_size, DTYPE_BYTES[dtype])
    num_blocks = min(capacity // one, MAX_BLOCKS)
    if num_blocks < len(groups) + 1:
        raise NoRoom(
            f"no room for the KV cache: {format_bytes(max(capacity, 0))} are left, the least that works is "
            f"{format_bytes((len(groups) + 1) * one)}; {remedy}"
        )
    layout = KVLayout(groups, block_size, num_blocks, DTYPE_BYTES[dtype])
    # The last token of a context is never computed, so it needs no place.
    fitted = min(max_model_len, longest_alone(layout, max_model_len) + 1)
    if fitted == max_model_len:
        return Sizing(layout=layout, max_model_len=fitted, notes=[])
    needed = (blocks_alone(layout, max_model_len - 1) + 1) * one
    note = (
        f"max_model_len {fitted}: {max_model_len} tokens need {format_bytes(needed)} of KV cache, "
        f"{format_bytes(num_blocks * one)} fit"
    )
    return Sizing(layout=layout, max_model_len=fitted, notes=[note])


def one_block_bytes(specs: Sequence[KVSpec], block_size: int, dtype: str) -> int:
    """Bytes of one block. Raises ConfigError if the layers' shapes do not fit one pool."""
    return block_bytes(_groups(specs, dtype), block_size, DTYPE_BYTES[dtype])


def _groups(specs: Sequence[KVSpec], dtype: str) -> tuple[KVGroup, ...]:
    try:
        return group_layers(cache_specs(specs, dtype))
    except ValueError as error:
        raise ConfigError(str(error)) from None
