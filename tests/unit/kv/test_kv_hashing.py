"""Digests: a chain, keyed by the salt, equal however it is grown."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kv import hashing
from octavo.kv.hashing import DIGEST_BYTES, HashChain, Trails, chain_seed


def block_digests(tokens, block_size, salt=""):
    return HashChain(block_size, chain_seed(salt)).extend(tokens, len(tokens) // block_size)


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


def test_a_known_beginning_is_not_hashed_again(monkeypatch) -> None:
    """Prompts that share a beginning, in any order: the digests are those of a chain that knows nothing."""
    monkeypatch.setattr(hashing, "STRIDE", 2)
    monkeypatch.setattr(hashing, "LONGEST", 6)
    trails, rng = Trails(capacity=3), random.Random(0)
    hashed: list[int] = []
    plainly = HashChain._hash
    monkeypatch.setattr(HashChain, "_hash", lambda *args: (hashed.append(len(args[1])), plainly(*args))[1])
    base = [rng.randrange(1 << 32) for _ in range(80)]
    for _ in range(300):
        tokens = base[: rng.randrange(81)] + [rng.randrange(9) for _ in range(rng.randrange(12))]
        salt = rng.choice(["", "a"])
        chain = HashChain(4, chain_seed(salt), trails)
        first = rng.randrange(len(tokens) // 4 + 1)
        chain.extend(tokens, first)
        assert chain.extend(tokens, len(tokens) // 4) == block_digests(tokens, 4, salt)
    for length in (80, 80, 60):
        hashed.clear()
        HashChain(4, chain_seed(), trails).extend(base[:length], length // 4)
    assert sum(hashed) == (60 - 6 * 2 * 4) * 4  # what lies behind the longest trail
    assert len(trails._trails) <= 3


@pytest.mark.parametrize("count", [0, 1, 15])
def test_no_full_block_no_digest(count: int) -> None:
    assert block_digests(range(count), 16) == []
