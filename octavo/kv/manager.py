"""KVManager: the transactions by which requests get, share and give back KV blocks.

    match    look up the longest known prefix; changes nothing
    open     take the matched blocks and room for the first chunk
    reserve  room for more tokens; frees what sliding windows have passed
    grow     the same for many that need one token each
    commit   make full blocks findable: see below
    promise  the same a little later, when the step is with the device
    commit_next  the same for many that have filled one each
    uncommit take that back after a failed step
    free     give all back

Each transaction counts before it takes, for all groups together, so it succeeds whole or changes nothing.

A block is findable as soon as its tokens are known and scheduled, before the device has run: steps run in order on
the device and each layer writes all keys and values of a step before it reads any.
"""

from array import array
from collections.abc import Container, Iterable, Sequence
from itertools import chain

from octavo.base.specs import KVLayout
from octavo.kv.hashing import STRIDE, HashChain, Trails, chain_seed
from octavo.kv.holding import Grant, Holding, Match
from octavo.kv.policy import policy_for
from octavo.kv.pool import BlockPool
from octavo.kv.prefix import PrefixIndex

PROBES = (1, STRIDE)  # blocks that are looked up before those behind them are hashed
EVERY_BLOCK = 1 << 40
"""More blocks than any request has: where nobody looks for prefixes, none is ever to be offered."""


class KVManager:
    """Owns the pool and the prefix index. Numbers are tokens unless they say blocks."""

    def __init__(self, layout: KVLayout, prefix_caching: bool = True) -> None:
        self.block_size = layout.block_size
        self.prefix_caching = prefix_caching
        self.num_groups = len(layout.groups)
        self.policies = [policy_for(group.spec, layout.block_size) for group in layout.groups]
        kinds = zip(layout.groups, enumerate(self.policies))
        self._sliding = [entry for group, entry in kinds if group.spec.window is not None]
        whole = [index for index, group in enumerate(layout.groups) if group.spec.window is None]
        self._full = whole[0] if whole else None  # a group that needs each block of a prefix
        self.index = PrefixIndex(self.policies, layout.num_blocks)
        self.pool = BlockPool(layout.num_blocks, self.index.forget)
        self._offered = 0 if prefix_caching else EVERY_BLOCK  # without anybody's doing
        self._trails = Trails()
        self._promised: list[tuple[Holding, Sequence[int], int, int, list[int]]] = []
        self.capacity = 0  # over all holdings, shared blocks counted once for each that holds them

    # --- facts

    @property
    def num_blocks(self) -> int:
        """Blocks that requests can own."""
        return self.pool.num_blocks - 1

    @property
    def usage(self) -> float:
        """Owned blocks over all blocks."""
        return self.pool.num_used / max(1, self.num_blocks)

    # --- transactions

    def hold(self, cache_salt: str = "") -> Holding:
        """An empty holding for a new request."""
        return Holding(self.num_groups, HashChain(self.block_size, chain_seed(cache_salt), self._trails))

    def match(self, holding: Holding, tokens: Sequence[int]) -> Match:
        """The longest known prefix of `tokens`, always short of the last one, whose logits are needed."""
        size = self.block_size
        limit = (len(tokens) - 1) // size if self.prefix_caching else 0
        if limit <= 0:
            return self.no_match()
        self.settle()
        # Most prompts are new: what nobody can have is hashed when it is computed, slice by slice.
        for probe in PROBES:
            digests = holding.chain.extend(tokens, min(probe, limit))
            if self._full is not None and probe < limit and not self.index.has(self._full, digests[probe - 1]):
                limit = probe
        digests = holding.chain.extend(tokens, limit)
        hit = self.index.longest_hit(digests, limit)
        refs = self.pool.refs
        blocks, num_free = [], 0
        for group, policy in enumerate(self.policies):
            first = policy.first_block(hit * size)
            found = self.index.blocks(group, digests[first:hit])
            num_free += list(map(refs.__getitem__, found)).count(0)
            blocks.append([0] * first + found)
        return Match(hit, size, blocks, num_free)

    def no_match(self) -> Match:
        """For those that must compute all their tokens."""
        return Match(0, self.block_size, [[] for _ in self.policies], 0)

    def fits(self, match: Match, total: int, chunk: int, spare: int) -> bool:
        """Whether `total` tokens after the match would fit now, in steps of `chunk`, with `spare` blocks to spare."""
        rest = total - match.num_tokens
        full = -(-rest // self.block_size)
        need = sum(min(full, policy.peak_blocks(total, chunk)) for policy in self.policies)
        return need + spare <= self.pool.num_free - match.num_free

    def freed_by(self, holding: Holding, kept: Container[int]) -> int:
        """Blocks that would be free if this holding were given up: nobody else's, and none of `kept`."""
        refs = self.pool.refs
        return sum(1 for table in holding.tables for block in table if refs[block] == 1 and block not in kept)

    def open(self, holding: Holding, match: Match, want: int) -> Grant | None:
        """Take the match and room for up to `want` tokens after it. None if not even one fits."""
        size = self.block_size
        places = -(-(match.num_tokens + want) // size) - match.num_blocks
        places = min(places, (self.pool.num_free - match.num_free) // self.num_groups)
        if places <= 0:
            return None
        for group, blocks in enumerate(match.blocks):
            self.pool.share(filter(None, blocks))
            holding.tables[group].extend(blocks)
            holding.first_live[group] = self.policies[group].first_block(match.num_tokens)
        holding.committed = max(match.num_blocks, self._offered)
        self.capacity += match.num_tokens
        self._append(holding, places)
        return Grant(min(want, places * size))

    def reserve(self, holding: Holding, computed: int, want: int) -> Grant | None:
        """Room for up to `want` tokens from `computed` on: all that fits, or None if that is nothing.

        Blocks that no token from `computed` on can read go back to the pool first.
        """
        end = computed + want
        if end <= holding.capacity:
            return Grant(want)
        if self._sliding:
            self._slide(holding, computed)
        size = self.block_size
        first = holding.capacity // size
        places = -(-end // size) - first
        if places * self.num_groups > self.pool.num_free:
            places = self.pool.num_free // self.num_groups
            want = min(want, (first + places) * size - computed)
            if want <= 0:
                return None
        return Grant(want, first, self._append(holding, places) if places else None)

    def grow(self, holdings: Sequence[Holding], starts: Iterable[int]) -> list[list[int]]:
        """One more block for each table of these, per group in their order; each computes from its start on.

        The caller has checked that the blocks are there.
        """
        count = len(holdings)
        if self._sliding:
            for holding, start in zip(holdings, starts):
                self._slide(holding, start)
        taken = self.pool.take(count * self.num_groups)
        blocks = [taken[first : first + count] for first in range(0, len(taken), count)]
        for group, new in enumerate(blocks):
            for holding, block in zip(holdings, new):
                holding.tables[group].append(block)
        self.capacity += count * self.block_size
        return blocks

    def commit(self, holding: Holding, tokens: Sequence[int], num_tokens: int) -> list[int]:
        """Make the full blocks among the first `num_tokens` findable: known, and scheduled up to there.

        Returns the blocks that were not findable before, for `uncommit`.
        """
        found: list[int] = []
        self.promise(holding, tokens, num_tokens, found)
        self.settle()
        return found

    def promise(self, holding: Holding, tokens: Sequence[int], num_tokens: int, found: list[int]) -> None:
        """`commit` before anybody can tell the difference: the device need not wait for the hashes of a long prompt.
        What it returns will be added to `found`. The line of tokens may grow meanwhile, and not change."""
        first, last = holding.committed, num_tokens // self.block_size
        if last > first:
            holding.committed = last
            self._promised.append((holding, tokens, first, last, found))

    def settle(self) -> None:
        """Commit what is promised."""
        for holding, tokens, first, last, found in self._promised:
            found += self._commit(holding, tokens, first, last)
        self._promised.clear()

    def _commit(self, holding: Holding, tokens: Sequence[int], first: int, last: int) -> list[int]:
        digests = holding.chain.extend(tokens, last)
        add, cached = self.index.add, self.pool.cached
        added = []
        for group, table in enumerate(holding.tables):
            for place in range(max(first, holding.first_live[group]), last):
                block = table[place]
                if not cached[block] and add(group, digests[place], block):
                    cached[block] = 1
                    added.append(block)
        return added

    def commit_next(self, holdings: Sequence[Holding], lines: Sequence[Sequence[int]]) -> None:
        """`commit` for many that have each filled one block more: ``lines[i]`` are the tokens of ``holdings[i]``."""
        self.settle()
        size = self.block_size
        places = [holding.committed for holding in holdings]
        filled = [line[place * size : (place + 1) * size] for line, place in zip(lines, places)]
        data = array("I", chain.from_iterable(filled)).tobytes()
        width, digests = 4 * size, []
        for index, (holding, place) in enumerate(zip(holdings, places)):
            digests.append(holding.chain.next(place, data[index * width : (index + 1) * width]))
            holding.committed = place + 1
        for group in range(self.num_groups):
            blocks = [holding.tables[group][place] for holding, place in zip(holdings, places)]
            self.index.add_all(group, digests, blocks, self.pool.cached)

    def uncommit(self, blocks: Iterable[int]) -> None:
        """What these blocks should hold was never written, or is in doubt."""
        self.settle()
        for block in blocks:
            self.index.forget(block)
            self.pool.cached[block] = 0

    def free(self, holding: Holding) -> None:
        """Give all blocks back, the last ones first in line for reuse. The holding is empty afterwards."""
        self.settle()
        self.capacity -= holding.capacity
        for group, table in enumerate(holding.tables):
            self.pool.release(filter(None, reversed(table)))
            table.clear()
            holding.first_live[group] = 0
        holding.committed = 0

    def forget_prefixes(self) -> None:
        """Empty the prefix index. Blocks in use stay with their owners."""
        self.settle()
        cached, found = self.pool.cached, []
        block = cached.find(1)
        while block >= 0:
            found.append(block)
            block = cached.find(1, block + 1)
        self.uncommit(found)

    # --- helpers

    def _append(self, holding: Holding, places: int) -> list[list[int]]:
        """`places` more blocks for each table. The caller has checked that they are there."""
        taken = self.pool.take(places * self.num_groups)
        blocks = [taken] if self.num_groups == 1 else [taken[i : i + places] for i in range(0, len(taken), places)]
        for table, new in zip(holding.tables, blocks):
            table += new
        self.capacity += places * self.block_size
        return blocks

    def _slide(self, holding: Holding, computed: int) -> None:
        for group, policy in self._sliding:
            first, now = holding.first_live[group], policy.first_block(computed)
            if now > first:
                self.settle()
                table = holding.tables[group]
                gone = range(first, min(now, len(table)))
                self.pool.release(table[gone.start : gone.stop])
                table[gone.start : gone.stop] = [0] * len(gone)
                holding.first_live[group] = now
