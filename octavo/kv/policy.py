"""How each kind of layer spends blocks, frees them and accepts prefix hits."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Protocol

from octavo.base.specs import KVSpec


class LayerPolicy(Protocol):
    """One layer kind's use of block tables. Places count blocks from the start of a request."""

    def first_block(self, computed: int) -> int:
        """First place of a block table that a token at position `computed`, or a later one, can read."""
        ...

    def longest_hit(self, index: Mapping[bytes, int], digests: Sequence[bytes], limit: int) -> int:
        """Most leading blocks, `limit` at most, that need not be computed given the blocks in `index`."""
        ...

    def peak_blocks(self, num_tokens: int, chunk: int) -> int:
        """Most blocks held at once while `num_tokens` are computed from nothing, `chunk` tokens a step."""
        ...


def policy_for(spec: KVSpec, block_size: int) -> LayerPolicy:
    """The policy of a group of layers with this spec."""
    return FullPolicy(block_size) if spec.window is None else SlidingPolicy(block_size, spec.window)


class FullPolicy:
    """Full attention: every token reads all before it, so all blocks stay until the request ends."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def first_block(self, computed: int) -> int:
        del computed
        return 0

    def longest_hit(self, index: Mapping[bytes, int], digests: Sequence[bytes], limit: int) -> int:
        """The unbroken chain from the first block."""
        for place, known in enumerate(map(index.__contains__, islice(digests, limit))):
            if not known:
                return place
        return limit

    def peak_blocks(self, num_tokens: int, chunk: int) -> int:
        del chunk
        return -(-num_tokens // self._block_size)


class SlidingPolicy:
    """Sliding-window attention: a token reads the last `window` tokens, itself included; blocks behind that go back."""

    def __init__(self, block_size: int, window: int) -> None:
        if window < 1:
            raise ValueError(f"a window holds at least one token, got {window}")
        self._block_size = block_size
        self._window = window
        self._behind = -(-(window - 1) // block_size)  # full blocks that hold the window - 1 tokens before a boundary

    def first_block(self, computed: int) -> int:
        return max(0, computed - self._window + 1) // self._block_size

    def longest_hit(self, index: Mapping[bytes, int], digests: Sequence[bytes], limit: int) -> int:
        """The longest prefix whose last `window - 1` tokens are all present; what lies before them is not needed."""
        hit, run = limit, 0  # the last `run` blocks before `hit` are present
        for place in range(limit - 1, -1, -1):
            if run >= self._behind:
                return hit
            if digests[place] in index:
                run += 1
            else:
                hit, run = place, 0
        return hit

    def peak_blocks(self, num_tokens: int, chunk: int) -> int:
        """The window, the chunk, and what block borders cost."""
        size = self._block_size
        return min(-(-num_tokens // size), self._behind + -(-chunk // size) + (1 if chunk % size != 0 else 0))
