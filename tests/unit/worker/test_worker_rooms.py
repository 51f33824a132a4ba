"""Which rooms there are, and which of them a step takes."""

import pytest

from octavo.base.plan import StepPlan
from octavo.worker.lineup import Lineup
from octavo.worker.rooms import LONG_TOKENS, LOOSE, MIXED_TOKENS, fitting, holding, rooms_for, tightest_first

ROOMS = tightest_first(rooms_for(256, 16_384, fresh=True))


def lineup(counts, starts=None, sample=None):
    rows = list(range(len(counts)))
    return Lineup.of(
        StepPlan(1, [], [], [], rows, counts, starts or [5] * len(rows), rows if sample is None else sample)
    )


def first(*plan):
    found = lineup(*plan)
    return fitting(holding(found, ROOMS), found.total, ROOMS)


@pytest.mark.parametrize("rows", [1, 3, 64, 65, 200, 256])
def test_decode_steps_take_a_room_of_one_token_a_row(rows):
    room = first([1] * rows)
    assert room is not None
    assert not room.mixed
    assert room.rows == room.tokens >= rows
    assert room.rows < rows + 32


@pytest.mark.parametrize("tokens", [2, 16, 17, 300, 2048, 2060, 2500, 3000, 3100, 4097, 8000, 8192])
def test_a_prompt_alone_takes_a_room_of_its_own_only_while_nothing_of_it_is_computed(tokens):
    fresh, later = first([tokens], [0]), first([tokens], [512])
    if fresh is not None:
        assert fresh.fresh == (fresh.tokens >= 256)
        assert fresh.tokens <= max(MIXED_TOKENS[-1], LOOSE * tokens)
    assert later is None or not later.fresh
    assert (fresh is None) == (later is None) == (tokens == 3100)


def test_what_no_room_holds_tightly_is_launched_as_it_is():
    assert first([9000], [0]) is None
    assert first([3000] + [1] * 200) is None  # more rows than a room for crowds has
    assert first([3000] + [1] * 60) == next(
        room for room in ROOMS if room.mixed and room.tokens == 3072 and room.rows > 1
    )


def test_a_small_device_has_no_rooms_for_crowds():
    assert max(room.tokens for room in rooms_for(256, 8192, fresh=True)) == MIXED_TOKENS[-1]
    assert not any(room.fresh for room in rooms_for(256, 16_384, fresh=False))
    assert max(room.tokens for room in ROOMS) == LONG_TOKENS[-1]
