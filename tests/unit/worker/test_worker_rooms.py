"""Which rooms there are, and which of them a step takes."""

import pytest

from octavo.base.plan import StepPlan
from octavo.kernels.ahead import SHORT_ROWS, SHORT_TOKENS, Room
from octavo.worker.lineup import Lineup
from octavo.worker.rooms import LONG_TOKENS, LOOSE, MIXED_TOKENS, fitting, holding, rooms_for, tightest_first

ROOMS = tightest_first(rooms_for(256, 16_384, fresh=True, short=True))


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
    assert max(room.tokens for room in rooms_for(256, 8192, fresh=True, short=True)) == MIXED_TOKENS[-1]
    assert not any(room.fresh for room in rooms_for(256, 16_384, fresh=False, short=False))
    assert max(room.tokens for room in ROOMS) == LONG_TOKENS[-1]


def test_a_few_rows_take_rooms_of_their_own_while_their_past_is_short():
    left = SHORT_TOKENS - 16
    assert first([1] * 16, [left // 16] * 16) == Room(16, 16, mixed=False, short=True)
    assert first([1] * 16, [left // 16 + 1] * 16) == Room(16, 16, mixed=False)
    assert first([1] * 3, [left, 7, 5]) == Room(4, 4, mixed=False, short=True)
    assert first([1], [SHORT_TOKENS]) == Room(1, 1, mixed=False)
    assert first([1] * (SHORT_ROWS + 1)) == Room(24, 24, mixed=False)
    assert not first([5, 1]).short
    assert not any(room.short for room in rooms_for(256, 16_384, fresh=True, short=False))
    plain = [room for room in ROOMS if not room.short]
    found = lineup([1] * 2)
    assert fitting(holding(found, ROOMS), found.total, plain) == Room(2, 2, mixed=False)  # until its own is there


def test_a_lineup_is_another_once_its_past_is_long():
    rows, ones = [0, 1], [1, 1]
    plans = [StepPlan(n, [], [], [], rows, ones, [n, SHORT_TOKENS - 10], rows) for n in (7, 8, 9)]
    found = Lineup.of(plans[0])
    assert found.short
    assert found.is_of(plans[1])
    assert not found.is_of(plans[2])
    assert not Lineup.of(plans[2]).short
