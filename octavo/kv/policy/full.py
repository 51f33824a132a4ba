"""Full attention: every token reads all before it, so all blocks stay until the request ends."""

from collections.abc import Mapping, Sequence
from itertools import islice


class FullPolicy:
    """Keeps everything, needs everything."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def first_block(self, computed: int) -> int:
        """Always the first: nothing is ever out of reach."""
        del computed
        return 0

    def longest_hit(self, index: Mapping[bytes, int], digests: Sequence[bytes], limit: int) -> int:
        """The unbroken chain from the first block."""
        for place, known in enumerate(map(index.__contains__, islice(digests, limit))):
            if not known:
                return place
        return limit

    def peak_blocks(self, num_tokens: int, chunk: int) -> int:
        """All of them, at the end."""
        del chunk
        return -(-num_tokens // self._block_size)
