"""PrefixIndex: from the digest of a block's past to the physical block that holds it, per KV group."""

from collections.abc import Sequence

from octavo.kv.policy import LayerPolicy


class PrefixIndex:
    """A hit is a prefix for which every group has all that its kind of layer still needs.

    Two requests may compute the same block at the same time; the first one indexed serves later hits.
    """

    def __init__(self, policies: Sequence[LayerPolicy], num_blocks: int) -> None:
        self._policies = policies
        self._blocks: list[dict[bytes, int]] = [{} for _ in policies]
        self._digests: list[bytes | None] = [None] * num_blocks
        self._groups = bytearray(num_blocks) if len(policies) < 256 else [0] * num_blocks

    def __len__(self) -> int:
        """Blocks that can be hit."""
        return sum(map(len, self._blocks))

    def longest_hit(self, digests: Sequence[bytes], limit: int) -> int:
        """Leading blocks, `limit` at most, that need not be computed: the longest length valid for all groups."""
        hit = limit
        settled = 0  # groups in a row that accepted `hit` as it stands
        while hit and settled < len(self._policies):
            for policy, blocks in zip(self._policies, self._blocks):
                found = policy.longest_hit(blocks, digests, hit)
                settled = settled + 1 if found == hit else 1
                hit = found
                if settled >= len(self._policies):
                    break
        return hit

    def has(self, group: int, digest: bytes) -> bool:
        """Whether a block can be found by this digest."""
        return digest in self._blocks[group]

    def blocks(self, group: int, digests: Sequence[bytes]) -> list[int]:
        """The physical blocks of these digests, all of which must be present."""
        index = self._blocks[group]
        return list(map(index.__getitem__, digests))

    def add(self, group: int, digest: bytes, block: int) -> bool:
        """Make a block findable. False if another block holds the same already."""
        if self._blocks[group].setdefault(digest, block) != block:
            return False
        self._digests[block] = digest
        self._groups[block] = group
        return True

    def add_all(self, group: int, digests: Sequence[bytes], blocks: Sequence[int], cached: bytearray) -> None:
        """`add` for many, with a mark in `cached` for those that are findable then; block 0 is none."""
        index, mine, groups = self._blocks[group], self._digests, self._groups
        for digest, block in zip(digests, blocks):
            if block and not cached[block] and index.setdefault(digest, block) == block:
                mine[block], groups[block], cached[block] = digest, group, 1

    def forget(self, block: int) -> None:
        """The block holds this prefix no longer; harmless if it held none."""
        digest = self._digests[block]
        if digest is not None:
            self._digests[block] = None
            del self._blocks[self._groups[block]][digest]

    def digest(self, block: int) -> bytes | None:
        """What the block is found by, or None."""
        return self._digests[block]
