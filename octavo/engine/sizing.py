"""How much KV cache there is and how long a context fits in it. Arithmetic only, so `octavo plan` needs no torch.

A full-attention group keeps a block for every `block_size` tokens of a request. A sliding group keeps those that
its window touches, so its need stops growing with the length.
"""

from collections.abc import Sequence

from msgspec import Struct

from octavo.base.config import CacheConfig
from octavo.base.errors import ConfigError
from octavo.base.specs import KVGroup, KVLayout, KVSpec, block_bytes, group_layers

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
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
        return self.usable_blocks / blocks_for(self.layout.groups, self.layout.block_size, length)

    def tokens(self, length: int | None = None) -> int:
        """Tokens that the cache holds in requests of `length` (the longest context)."""
        length = self.max_model_len if length is None else length
        return int(self.concurrency(length) * length)


def blocks_for(groups: Sequence[KVGroup], block_size: int, length: int, chunk: int = 1) -> int:
    """Most blocks that one request of `length` tokens owns at a time, computed in steps of `chunk` tokens."""
    return sum(_group_blocks(group.spec.window, block_size, length, chunk) for group in groups)


def _group_blocks(window: int | None, block_size: int, length: int, chunk: int) -> int:
    whole = -(-length // block_size)
    if window is None:
        return whole
    # A step reads window - 1 tokens before its own first; wherever they begin, they touch this many blocks.
    live = window - 1 + chunk
    return min(whole, -(-(live - 1) // block_size) + 1)


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
    chunk: int,
) -> Sizing:
    """Cut `capacity` bytes into blocks and fit the context to them.

    `chunk` is the most tokens that one request computes in a step. Raises ConfigError only if not even one block
    for each group of layers fits.
    """
    try:
        groups = group_layers(specs)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    one = block_bytes(groups, block_size, DTYPE_BYTES[dtype])
    num_blocks = min(capacity // one, MAX_BLOCKS)
    if num_blocks < len(groups) + 1:
        raise ConfigError(
            f"no room for the KV cache: {format_bytes(max(capacity, 0))} are left, the least that works is "
            f"{format_bytes((len(groups) + 1) * one)}; free memory or raise --gpu-memory-utilization"
        )
    layout = KVLayout(groups, block_size, num_blocks, DTYPE_BYTES[dtype])
    fitted = longest(groups, block_size, num_blocks - 1, max_model_len, chunk)
    if fitted == max_model_len:
        return Sizing(layout=layout, max_model_len=fitted, notes=[])
    needed = (blocks_for(groups, block_size, max_model_len, chunk) + 1) * one
    note = (
        f"max_model_len {fitted}: {max_model_len} tokens need {format_bytes(needed)} of KV cache, "
        f"{format_bytes(num_blocks * one)} fit"
    )
    return Sizing(layout=layout, max_model_len=fitted, notes=[note])


def longest(groups: Sequence[KVGroup], block_size: int, blocks: int, asked: int, chunk: int) -> int:
    """The largest length up to `asked` whose request owns at most `blocks` at any time."""
    low, high = 0, asked
    while low < high:
        middle = (low + high + 1) // 2
        # No request computes more tokens at once than it has.
        if blocks_for(groups, block_size, middle, min(chunk, middle)) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low


def format_bytes(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / (1 << 20):.1f} MiB"
