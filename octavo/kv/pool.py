"""BlockPool: which physical blocks are in use, by how many, and which one to reuse next.

Everything is O(1). A free block that still holds a known prefix stays matchable until it is reused: such blocks are
linked in order of their last use, the head is reused first. Those that nobody can find are reused before any of them;
they lie in a stack, from which many are taken as quickly as one.
"""

from array import array
from collections.abc import Callable, Iterable

from octavo.base.plan import PAD_BLOCK


class BlockPool:
    """Reference counts and the free blocks.

    Block 0 (PAD_BLOCK) is never given out; its place in the links is the head of the circular list.
    `forget` is called with a block that is about to be reused while `cached` holds for it.
    """

    def __init__(self, num_blocks: int, forget: Callable[[int], None]) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self.refs = [0] * num_blocks
        self.cached = bytearray(num_blocks)  # 1: the prefix index knows this block
        self._forget = forget
        self._blank = list(range(num_blocks - 1, 0, -1))  # the last is reused first
        self._next = array("q", bytes(8 * num_blocks))
        self._prev = array("q", bytes(8 * num_blocks))

    @property
    def num_used(self) -> int:
        """Blocks that some request owns."""
        return self.num_blocks - 1 - self.num_free

    def take(self, count: int) -> list[int]:
        """`count` private blocks in order of reuse. The caller has checked `num_free`."""
        if count > self.num_free:
            raise ValueError(f"{count} blocks asked of {self.num_free} free ones")
        taken = self._blank[: -count - 1 : -1]
        del self._blank[len(self._blank) - len(taken) :]
        if len(taken) < count:
            taken += self._take_oldest(count - len(taken))
        refs = self.refs
        for block in taken:
            refs[block] = 1
        self.num_free -= count
        return taken

    def _take_oldest(self, count: int) -> list[int]:
        """The first of the list; they can be found no longer."""
        following, cached = self._next, self.cached
        taken = []
        block = following[PAD_BLOCK]
        for _ in range(count):
            if cached[block]:
                cached[block] = 0
                self._forget(block)
            taken.append(block)
            block = following[block]
        following[PAD_BLOCK] = block
        self._prev[block] = PAD_BLOCK
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more owner for each; a free one, which somebody has found, leaves the list."""
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

        The last owner puts a block at the end of the list if it may be hit again, else on the stack.
        """
        refs, cached, following, previous = self.refs, self.cached, self._next, self._prev
        blank = self._blank
        for block in blocks:
            left = refs[block] - 1
            if block == PAD_BLOCK or left < 0:
                raise ValueError(f"block {block} has no owner to release it")
            refs[block] = left
            if left:
                continue
            self.num_free += 1
            if not cached[block]:
                blank.append(block)
                continue
            last = previous[PAD_BLOCK]
            following[last] = previous[PAD_BLOCK] = block
            previous[block], following[block] = last, PAD_BLOCK

    def free_blocks(self) -> list[int]:
        """The free blocks in order of reuse. Walks them all: for tests and dumps."""
        blocks = self._blank[::-1]
        block = self._next[PAD_BLOCK]
        while block != PAD_BLOCK:
            blocks.append(block)
            block = self._next[block]
        return blocks
