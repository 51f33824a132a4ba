"""What the manager asks of a layer kind."""

from collections.abc import Mapping, Sequence
from typing import Protocol


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
