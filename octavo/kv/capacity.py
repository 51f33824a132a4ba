"""How much fits into a KV layout. Used before the engine runs (fitting the context) and when requests arrive."""

from octavo.base.specs import KVLayout
from octavo.kv.policy import policy_for


def blocks_alone(layout: KVLayout, num_tokens: int) -> int:
    """Blocks that one request needs at its peak to compute `num_tokens`, in chunks of one block."""
    size = layout.block_size
    return sum(policy_for(group.spec, size).peak_blocks(num_tokens, size) for group in layout.groups)


def longest_alone(layout: KVLayout, limit: int) -> int:
    """Most tokens, `limit` at most, that one request can compute when it has the whole cache.

    A context of ``longest_alone + 1`` tokens can be served, since the last token is never computed.
    """
    usable = layout.num_blocks - 1
    low, high = 0, limit
    while low < high:  # needs grow with length
        middle = (low + high + 1) // 2
        if blocks_alone(layout, middle) <= usable:
            low = middle
        else:
            high = middle - 1
    return low
