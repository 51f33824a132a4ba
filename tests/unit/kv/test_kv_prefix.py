"""Layer policies and the longest hit, against their definitions."""

from hypothesis import given
from hypothesis import strategies as st

from octavo.base.specs import KVGroup, KVLayout, KVSpec
from octavo.kv.capacity import blocks_alone, longest_alone
from octavo.kv.hashing import HashChain, chain_seed
from octavo.kv.policy import SlidingPolicy, policy_for
from octavo.kv.prefix import PrefixIndex

SIZE = 4
WINDOWS = st.one_of(st.none(), st.integers(1, 14))


def layout(windows: list[int | None], num_blocks: int = 64) -> KVLayout:
    groups = tuple(KVGroup(KVSpec(1, 8, window), (i,)) for i, window in enumerate(windows))
    return KVLayout(groups=groups, block_size=SIZE, num_blocks=num_blocks, dtype_bytes=2)


def valid(window: int | None, present: set[int], hit: int) -> bool:
    """Whether a token at position ``hit * SIZE`` finds all it reads."""
    end = hit * SIZE
    oldest = 0 if window is None else max(0, end - window + 1)
    return all(position // SIZE in present for position in range(oldest, end))


@given(st.integers(1, 40), st.integers(0, 100))
def test_a_sliding_policy_keeps_what_the_window_reads(window: int, computed: int) -> None:
    first = SlidingPolicy(SIZE, window).first_block(computed)
    oldest = max(0, computed - window + 1)
    assert first * SIZE <= oldest < (first + 1) * SIZE


@given(st.lists(st.tuples(WINDOWS, st.sets(st.integers(0, 9))), min_size=1, max_size=4), st.integers(0, 10))
def test_longest_hit_over_groups(groups: list[tuple[int | None, set[int]]], limit: int) -> None:
    digests = HashChain(SIZE, chain_seed()).extend(range(10 * SIZE), 10)
    policies = [policy_for(KVSpec(1, 8, window), SIZE) for window, _ in groups]
    index = PrefixIndex(policies, 64)
    block = 0
    for group, (_, present) in enumerate(groups):
        for place in present:
            block += 1
            assert index.add(group, digests[place], block)
    want = max(hit for hit in range(limit + 1) if all(valid(window, present, hit) for window, present in groups))
    assert index.longest_hit(digests, limit) == want


def test_the_first_block_indexed_serves() -> None:
    index = PrefixIndex([policy_for(KVSpec(1, 8), SIZE)], 8)
    digest = b"a block"
    assert index.add(0, digest, 3)
    assert not index.add(0, digest, 5)
    assert index.blocks(0, [digest]) == [3]
    index.forget(5)
    assert len(index) == 1
    index.forget(3)
    assert index.longest_hit([digest], 1) == len(index) == 0


@given(st.lists(WINDOWS, min_size=1, max_size=3), st.integers(1, 80))
def test_peak_is_what_one_request_holds_at_most(windows: list[int | None], num_tokens: int) -> None:
    """Blocks are taken one place at a time, after those behind the window went back."""
    policies = [policy_for(KVSpec(1, 8, window), SIZE) for window in windows]
    peak = 0
    for place in range(-(-num_tokens // SIZE)):
        peak = max(peak, sum(place + 1 - policy.first_block(place * SIZE) for policy in policies))
    assert blocks_alone(layout(windows), num_tokens) == peak


def test_longest_alone() -> None:
    assert longest_alone(layout([None], 11), 1000) == 10 * SIZE
    assert longest_alone(layout([None], 11), 30) == 30
    assert longest_alone(layout([5], 11), 1000) == 1000
    assert longest_alone(layout([None, 5], 11), 1000) == 8 * SIZE
    assert longest_alone(layout([None, 5], 2), 1000) == 0
