"""Sliding-window attention: a token reads the last `window` tokens, itself included; blocks behind that go back."""

from collections.abc import Mapping, Sequence


class SlidingPolicy:
    """Keeps what the window of the next token reaches. `window` is in tokens, the current one included."""

    def __init__(self, block_size: int, window: int) -> None:
        if window < 1:
            raise ValueError(f"a window holds at least one token, got {window}")
        self._block_size = block_size
        self._window = window
        self._behind = -(-(window - 1) // block_size)  # full blocks that hold the window - 1 tokens before a boundary

    def first_block(self, computed: int) -> int:
        """The block of the oldest token in the window."""
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
