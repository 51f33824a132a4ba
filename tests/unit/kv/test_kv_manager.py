"""Transactions: all or nothing, for all groups, and everything comes back."""

from octavo.base.specs import KVGroup, KVLayout, KVSpec
from octavo.kv.hashing import STRIDE, HashChain, chain_seed
from octavo.kv.manager import KVManager

TOKENS = list(range(100, 140))


def make(windows: tuple[int | None, ...] = (None,), num_blocks: int = 21, prefix_caching: bool = True) -> KVManager:
    groups = tuple(KVGroup(KVSpec(1, 8, window), (i,)) for i, window in enumerate(windows))
    layout = KVLayout(groups=groups, block_size=4, num_blocks=num_blocks, dtype_bytes=2)
    return KVManager(layout, prefix_caching)


def fill(kv: KVManager, tokens: list[int], salt: str = "") -> None:
    """A request that computes these tokens and goes."""
    holding = kv.hold(salt)
    assert kv.open(holding, kv.match(holding, tokens), len(tokens)) is not None
    kv.commit(holding, tokens, len(tokens))
    kv.free(holding)


def test_open_reserve_free() -> None:
    kv = make((None, 6))
    holding = kv.hold()
    grant = kv.open(holding, kv.match(holding, TOKENS), 10)
    assert grant is not None
    assert grant.num_tokens == 10
    assert [len(table) for table in holding.tables] == [3, 3]
    assert holding.capacity == kv.capacity == 12
    grant = kv.reserve(holding, 10, 2)
    assert grant is not None
    assert (grant.num_tokens, grant.blocks) == (2, None)
    grant = kv.reserve(holding, 12, 3)
    assert grant is not None
    assert grant.first == 3
    assert grant.blocks is not None
    assert [len(blocks) for blocks in grant.blocks] == [1, 1]
    assert holding.tables[1][0] == 0, "position 12 sees 7 to 12: the first block is free"
    assert kv.pool.num_used == 7
    kv.free(holding)
    assert (kv.pool.num_used, kv.capacity, holding.tables) == (0, 0, [[], []])


def test_what_does_not_fit_changes_nothing_but_the_size() -> None:
    kv = make(num_blocks=4)
    holding = kv.hold()
    grant = kv.open(holding, kv.no_match(), 20)
    assert grant is not None
    assert grant.num_tokens == 12, "all that fits"
    other = kv.hold()
    assert kv.open(other, kv.no_match(), 1) is None
    assert kv.reserve(holding, 12, 1) is None
    assert (other.tables, other.capacity) == ([[]], 0)
    assert kv.pool.num_free == 0


def test_a_whole_prompt_is_never_hit() -> None:
    kv = make()
    fill(kv, TOKENS[:8])
    holding = kv.hold()
    assert kv.match(holding, TOKENS[:8]).num_tokens == 4
    assert kv.match(holding, TOKENS[:9]).num_tokens == 8
    assert kv.match(kv.hold(), [*TOKENS[:5], 0, 0, 0, 0]).num_tokens == 4
    assert kv.match(kv.hold("salt"), TOKENS[:9]).num_tokens == 0


def test_of_a_long_prompt_that_nobody_began_only_the_first_block_is_hashed() -> None:
    base = list(range(4 * 3 * STRIDE + 1))
    for windows, known in (((None,), False), ((6, None), False), ((6,), False), ((None,), True)):
        kv = make(windows, num_blocks=400)
        if known:
            fill(kv, base)
        holding = kv.hold()
        match = kv.match(holding, base)
        assert match.num_blocks == (3 * STRIDE if known else 0)
        assert len(holding.chain.digests) == (1 if None in windows and not known else 3 * STRIDE)
    # Half of the first stride is known: found without more.
    kv = make(num_blocks=400)
    fill(kv, base[: 2 * STRIDE])
    holding = kv.hold()
    assert kv.match(holding, base).num_blocks == STRIDE // 2
    assert holding.chain.extend(base, 3 * STRIDE) == HashChain(4, chain_seed()).extend(base, 3 * STRIDE)


def test_matching_counts_free_blocks_that_it_would_take() -> None:
    kv = make(num_blocks=5)
    fill(kv, TOKENS[:8])
    holding = kv.hold()
    match = kv.match(holding, TOKENS[:20])
    assert (match.num_blocks, match.num_free) == (2, 2)
    assert not kv.fits(match, 20, 12, 0)
    assert kv.fits(match, 16, 8, 0)
    assert not kv.fits(match, 16, 8, 1)
    grant = kv.open(holding, match, 12)
    assert grant is not None
    assert grant.num_tokens == 8
    assert kv.pool.num_free == 0


def test_shared_blocks_stay_until_the_last_owner_goes() -> None:
    kv = make()
    first, second = kv.hold(), kv.hold()
    kv.open(first, kv.match(first, TOKENS[:12]), 12)
    kv.commit(first, TOKENS, 12)
    match = kv.match(second, TOKENS[:12])
    assert (match.num_tokens, match.num_free) == (8, 0)
    kv.open(second, match, 4)
    assert kv.pool.num_used == 4
    kv.free(first)
    assert kv.pool.num_used == 3
    assert kv.match(kv.hold(), TOKENS[:12]).num_tokens == 8
    kv.free(second)
    assert kv.pool.num_used == 0


def test_a_sliding_group_needs_only_its_window() -> None:
    kv = make((None, 6))
    fill(kv, TOKENS[:16])
    old = kv.index.blocks(1, kv.hold().chain.extend(TOKENS, 4)[:2])
    kv.uncommit(old)  # as if they had been reused
    holding = kv.hold()
    match = kv.match(holding, TOKENS[:20])
    assert match.num_tokens == 16
    assert match.blocks[1][:2] == [0, 0]
    assert all(match.blocks[1][2:])
    kv.uncommit([match.blocks[1][3]])
    assert kv.match(kv.hold(), TOKENS[:20]).num_tokens == 0


def test_uncommitted_blocks_are_not_found() -> None:
    kv = make()
    holding = kv.hold()
    kv.open(holding, kv.no_match(), 12)
    first = kv.commit(holding, TOKENS, 8)
    second = kv.commit(holding, TOKENS, 12)
    assert (len(first), len(second)) == (2, 1)
    kv.uncommit(second)
    assert kv.match(kv.hold(), TOKENS).num_tokens == 8
    kv.free(holding)
    kv.forget_prefixes()
    assert kv.match(kv.hold(), TOKENS).num_tokens == 0
    assert kv.pool.num_free == kv.num_blocks


def test_without_prefix_caching_nothing_is_found() -> None:
    kv = make(prefix_caching=False)
    fill(kv, TOKENS)
    assert kv.match(kv.hold(), TOKENS).num_tokens == 0
    assert len(kv.index) == 0


def test_long_windows_are_given_back_in_chunks() -> None:
    """A prompt many times the pool passes through a sliding group."""
    kv = make((6,), num_blocks=7)
    holding = kv.hold()
    grant = kv.open(holding, kv.no_match(), 100)
    computed = 0
    while computed < 100:
        assert grant is not None
        computed += grant.num_tokens
        grant = kv.reserve(holding, computed, 100 - computed) if computed < 100 else None
    assert kv.pool.num_used <= 6
    kv.free(holding)
    assert kv.pool.num_used == 0


def test_many_that_fill_one_block_each_offer_what_they_would_one_by_one() -> None:
    prompts = [[seed + i % 3 for i in range(12)] for seed in (1, 2, 1, 5)]
    found = []
    for together in (False, True):
        kv = make((None, 6), num_blocks=40)
        holdings = [kv.hold() for _ in prompts]
        for holding, tokens in zip(holdings, prompts):
            assert kv.open(holding, kv.no_match(), 12) is not None
            holding.chain.extend(tokens, 1)  # one digest is known from a look-up, the second is not
        for end in (4, 8):
            if together:
                kv.commit_next(holdings, prompts)
            else:
                for holding, tokens in zip(holdings, prompts):
                    kv.commit(holding, tokens, end)
        hits = [kv.match(kv.hold(), tokens) for tokens in prompts]
        found.append(([holding.committed for holding in holdings], [hit.blocks for hit in hits], bytes(kv.pool.cached)))
    assert found[0] == found[1]
    assert found[0][0] == [2] * 4


def test_a_promise_is_kept_before_anybody_can_tell() -> None:
    kv = make()
    first, found = kv.hold(), []
    grant = kv.open(first, kv.match(first, TOKENS[:9]), 9)
    assert grant is not None
    kv.promise(first, TOKENS, 9, found)
    assert first.committed == 2
    assert not found
    assert not len(kv.index)
    assert kv.match(kv.hold(), TOKENS[:9]).num_tokens == 8
    assert found == first.tables[0][:2]
    kv.promise(first, TOKENS, 12, found)
    kv.free(first)
    assert kv.match(kv.hold(), TOKENS[:13]).num_tokens == 12
    kv.uncommit(found)
    assert kv.match(kv.hold(), TOKENS[:13]).num_tokens == 0
