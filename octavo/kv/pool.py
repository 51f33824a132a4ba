"""BlockPool: which physical blocks are in use, by how many, and which one to reuse next.

Everything is O(1) and lives in plain lists indexed by block. A free block that still holds a known prefix stays
matchable until it is reused, so the free list is ordered by last use: the head is reused first.
"""

from collections.abc import Callable, Iterable

from octavo.base.plan import PAD_BLOCK


class BlockPool:
    """Reference counts and the free list.

    Block 0 (PAD_BLOCK) is never given out; its place in the links is the head of the circular free list.
    `forget` is called with a block that is about to be reused while `cached` holds for it.
    """

    def __init__(self, num_blocks: int, forget: Callable[[int], None]) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self.refs = [0] * num_blocks
        self.cached = bytearray(num_blocks)  # 1: the prefix index knows this block
        self._forget = forget
        self._next = [*range(1, num_blocks), 0]
        self._prev = [num_blocks - 1, *range(num_blocks - 1)]

    @property
    def num_used(self) -> int:
        """Blocks that some request owns."""
        return self.num_blocks - 1 - self.num_free

    def take(self, count: int) -> list[int]:
        """`count` private blocks, least recently used first. The caller has checked `num_free`."""
        if count > self.num_free:
            raise ValueError(f"{count} blocks asked of {self.num_free} free ones")
        following, refs, cached = self._next, self.refs, self.cached
        taken = []
        block = following[PAD_BLOCK]
        for _ in range(count):
            if cached[block]:
                cached[block] = 0
                self._forget(block)
            refs[block] = 1
            taken.append(block)
            block = following[block]
        following[PAD_BLOCK] = block
        self._prev[block] = PAD_BLOCK
        self.num_free -= count
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more owner for each; a free block leaves the free list."""
        refs, following, previous = self.refs, self._next, self._prev
        for block in blocks:
            owners = refs[block]
            if not owners:
                before, after = previous[block], following[block]
                following[before] = after
                previous[after] = before
                self.num_free -= 1
            refs[block] = owners + 1

    def release(self, blocks: Iterable[int]) -> None:
        """One owner less for each, in this order.

        The last owner puts a block in the free list: at the end if it may be hit again, else in front.
        """
        refs, cached, following, previous = self.refs, self.cached, self._next, self._prev
        for block in blocks:
            left = refs[block] - 1
            if block == PAD_BLOCK or left < 0:
                raise ValueError(f"block {block} has no owner to release it")
            refs[block] = left
            if left:
                continue
            after = PAD_BLOCK if cached[block] else following[PAD_BLOCK]
            before = previous[after]
            following[before] = previous[after] = block
            previous[block], following[block] = before, after
            self.num_free += 1

    def free_blocks(self) -> list[int]:
        """The free list in order of reuse. Walks it all: for tests and dumps."""
        blocks = []
        block = self._next[PAD_BLOCK]
        while block != PAD_BLOCK:
            blocks.append(block)
            block = self._next[block]
        return blocks
