"""Lines that grow by one token a step are the same however seldom they are read."""

import random

import pytest

from octavo.base.lines import SPAN, Lines


@pytest.mark.parametrize("steps", [1, 2, SPAN - 1, SPAN, SPAN + 1, 3 * SPAN])
def test_what_is_added_is_there_once_settled(steps: int) -> None:
    lines, told = [[1], [], [2, 3]], Lines()
    for step in range(steps):
        told.add(lines, [step, 100 + step, 200 + step])
    told.settle()
    told.settle()
    assert lines == [[1, *range(steps)], [*range(100, 100 + steps)], [2, 3, *range(200, 200 + steps)]]


def test_other_lines_may_come_at_any_step_and_be_read_at_any() -> None:
    rng = random.Random(0)
    lines: list[list[int]] = [[] for _ in range(6)]
    want: list[list[int]] = [[] for _ in range(6)]
    told, who, mine = Lines(), [0], [lines[0]]
    for step in range(2000):
        if rng.random() < 0.2:
            who = rng.sample(range(6), rng.randint(0, 6))
            mine = [lines[each] for each in who]
        told.add(mine, [step + each for each in who])
        for each in who:
            want[each].append(step + each)
        if rng.random() < 0.1:
            told.settle()
            assert lines == want


def test_no_more_than_a_span_is_ever_kept() -> None:
    line: list[int] = []
    mine, told = [line], Lines()
    for step in range(5 * SPAN):
        told.add(mine, [step])
        assert step + 1 - SPAN <= len(line)
