"""The pool against a plain model of itself."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kv.pool import BlockPool


def make(num_blocks: int = 6) -> tuple[BlockPool, list[int]]:
    forgotten: list[int] = []
    return BlockPool(num_blocks, forgotten.append), forgotten


def test_block_zero_is_never_given_out() -> None:
    pool, _ = make()
    assert pool.num_free == 5
    assert sorted(pool.take(5)) == [1, 2, 3, 4, 5]
    assert pool.num_used == 5
    with pytest.raises(ValueError, match="asked of 0"):
        pool.take(1)


def test_findable_blocks_are_reused_last_and_oldest_first() -> None:
    pool, forgotten = make()
    blocks = pool.take(5)
    for block in blocks[:3]:
        pool.cached[block] = 1
    pool.release(blocks)
    assert pool.take(2) == [blocks[4], blocks[3]]
    assert forgotten == []
    assert pool.take(1) == [blocks[0]]
    assert forgotten == [blocks[0]]
    assert not pool.cached[blocks[0]]


def test_a_free_block_can_be_shared_again() -> None:
    pool, forgotten = make()
    block = pool.take(1)[0]
    pool.cached[block] = 1
    pool.release([block])
    pool.share([block, block])
    assert pool.num_used == 1
    assert block not in pool.take(4)
    pool.release([block])
    assert pool.num_used == 5
    pool.release([block])
    assert pool.free_blocks() == [block]
    assert forgotten == []


def test_wrong_releases_are_refused() -> None:
    pool, _ = make()
    for block in (0, 1):
        with pytest.raises(ValueError, match="no owner"):
            pool.release([block])


@given(st.lists(st.tuples(st.sampled_from(["take", "share", "release", "cache"]), st.integers(0, 30)), max_size=80))
def test_pool_equals_its_model(events: list[tuple[str, int]]) -> None:
    pool, _ = make(8)
    free = OrderedDict.fromkeys(range(1, 8))
    refs: dict[int, int] = {}
    cached: set[int] = set()
    for kind, pick in events:
        if kind == "take" and len(free) >= pick % 3:
            taken = pool.take(pick % 3)
            assert taken == [free.popitem(last=False)[0] for _ in range(pick % 3)]
            refs.update(dict.fromkeys(taken, 1))
            cached -= set(taken)
        elif kind == "share" and (refs or cached):
            block = sorted(refs.keys() | cached)[pick % len(refs.keys() | cached)]
            pool.share([block])
            free.pop(block, None)
            refs[block] = refs.get(block, 0) + 1
        elif kind == "release" and refs:
            block = sorted(refs)[pick % len(refs)]
            pool.release([block])
            refs[block] -= 1
            if not refs[block]:
                del refs[block]
                free[block] = None
                free.move_to_end(block, last=block in cached)
        elif kind == "cache" and refs:
            block = sorted(refs)[pick % len(refs)]
            pool.cached[block] = 1
            cached.add(block)
        assert pool.free_blocks() == list(free)
        assert pool.num_free == len(free)
        assert {block: count for block, count in enumerate(pool.refs) if count} == refs
