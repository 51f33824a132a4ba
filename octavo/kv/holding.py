"""What one request holds of the KV cache, and the answers that transactions give."""

from octavo.kv.hashing import HashChain


class Holding:
    """One request's share of the pool. Only KVManager changes it.

    `tables[group][place]` is the block of tokens ``place * block_size`` and on, 0 where a sliding window has
    passed or a prefix hit needed none. All tables are equally long.
    """

    __slots__ = ("chain", "committed", "first_live", "tables")

    def __init__(self, num_groups: int, chain: HashChain) -> None:
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        self.first_live = [0] * num_groups  # places before these are 0
        self.committed = 0  # leading blocks that were offered to the prefix index, or came from it
        self.chain = chain

    @property
    def capacity(self) -> int:
        """What its tables cover, in tokens."""
        return len(self.tables[0]) * self.chain.block_size


class Match:
    """Leading blocks found in the prefix cache; nothing is held yet."""

    __slots__ = ("blocks", "num_blocks", "num_free", "num_tokens")

    def __init__(self, num_blocks: int, block_size: int, blocks: list[list[int]], num_free: int) -> None:
        self.num_blocks = num_blocks
        self.num_tokens = num_blocks * block_size
        self.blocks = blocks  # per group, 0 where the group needs none
        self.num_free = num_free  # how many of them nobody owns now, so that taking them shortens the free list


class Grant:
    """Room for `num_tokens` more tokens. `blocks` are those appended per group, from place `first` on."""

    __slots__ = ("blocks", "first", "num_tokens")

    def __init__(self, num_tokens: int, first: int = 0, blocks: list[list[int]] | None = None) -> None:
        self.num_tokens = num_tokens
        self.first = first
        self.blocks = blocks
