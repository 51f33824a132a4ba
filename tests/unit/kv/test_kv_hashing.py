"""Digests: a chain, keyed by the salt, equal however it is grown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kv.hashing import DIGEST_BYTES, HashChain, block_digests, chain_seed


def test_a_digest_covers_all_tokens_before_it() -> None:
    base = block_digests(range(48), 16)
    assert len(base) == 3
    assert all(len(digest) == DIGEST_BYTES for digest in base)
    changed = block_digests([99, *range(1, 48)], 16)
    assert all(a != b for a, b in zip(base, changed))
    late = block_digests([*range(47), 99], 16)
    assert late[:2] == base[:2]
    assert late[2] != base[2]


def test_salts_part_the_chains() -> None:
    digests = {salt: block_digests(range(16), 16, salt)[0] for salt in ("", "a", "b", "\0", "é", "\ud800")}
    assert len(set(digests.values())) == 6


def test_equal_blocks_at_other_places_differ() -> None:
    digests = block_digests([1, 2, 3, 4] * 4, 4)
    assert len(set(digests)) == 4


@given(st.lists(st.integers(0, 300_000), max_size=64), st.integers(1, 9), st.lists(st.integers(0, 64), max_size=5))
def test_growing_gives_the_same_digests(tokens: list[int], block_size: int, stops: list[int]) -> None:
    chain = HashChain(block_size, chain_seed("salt"))
    full = len(tokens) // block_size
    for stop in sorted(min(stop, full) for stop in stops):
        chain.extend(tokens, stop)
    assert chain.extend(tokens, full) == block_digests(tokens, block_size, "salt")


@pytest.mark.parametrize("count", [0, 1, 15])
def test_no_full_block_no_digest(count: int) -> None:
    assert block_digests(range(count), 16) == []
