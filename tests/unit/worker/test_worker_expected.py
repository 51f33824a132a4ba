"""Steps that are told of while the one before is still to be sampled give the tokens that they would give otherwise."""

import numpy as np
import pytest
from test_worker_captured import SAMPLINGS, drivers, masks_of
from test_worker_launches import LEAST, Bench, Launches
from worker_toy import NewBlocks

from octavo.base.plan import StepPlan

ROWS = 5


def plans(driver, steps, *, blocks=()):
    """One that adds all rows, and those behind it, which share their columns."""
    added = [driver.added(row, [1 + row, 2, 3], sampling=SAMPLINGS["mixed"](row)) for row in range(ROWS)]
    rows, ones, sample = list(range(ROWS)), [1] * ROWS, list(range(ROWS))
    yield StepPlan(1, [], added, [], rows, [3] * ROWS, [0] * ROWS, sample)
    for step in range(steps):
        new = [NewBlocks(*each) for at, *each in blocks if at == step]
        yield StepPlan(2 + step, [], [], new, rows, ones, [3 + step] * ROWS, sample)


def run(driver, given, *, ahead, masks=None, between=None):
    """Tokens of the steps. `ahead`: each is told of before the last is sampled; `between`: so is another, in vain."""
    runner, tokens, given = driver.runner, [], list(given)
    runner.forward(given[0])
    for step in range(len(given)):
        behind = given[step + 1] if step + 1 < len(given) else None
        if ahead and behind is not None:
            runner.expect(behind)
            if between is not None:
                runner.expect(between)
        pending = runner.sample({} if masks is None else {"grammar": masks[step]})
        if behind is not None:
            runner.forward(behind)
        tokens.append(pending.result().tokens)
    return tokens


@pytest.mark.parametrize("held", [False, True])
def test_tokens_are_the_same(held):
    rng = np.random.default_rng(1)
    masks = [masks_of(rng, range(ROWS)) for _ in range(9)] if held else None
    found = []
    for driver, ahead in zip((*drivers(), drivers()[0]), (True, True, False)):
        found.append(run(driver, plans(driver, 8), ahead=ahead, masks=masks))
    assert found[0] == found[1] == found[2]


def test_what_was_expected_need_not_come():
    """Other lengths, as after a step that failed."""
    one, other = drivers()[0], drivers()[0]
    in_vain = list(plans(one, 8))[7]
    assert run(one, plans(one, 4), ahead=True, between=in_vain) == run(other, plans(other, 4), ahead=False)


@pytest.mark.parametrize("blocks", [[(2, [0], [0], [5], [90])], [(1, [0, 0], [0, 0], [5, 6], [90, 91])]], ids=str)
def test_blocks_that_come_with_it(blocks):
    found = []
    for ahead in (True, False):
        driver = drivers()[0]
        tokens = run(driver, plans(driver, 6, blocks=blocks), ahead=ahead)
        table = driver.runner._table.blocks[0, 0, :8].tolist()
        assert table[5] == 90
        found.append((tokens, table))
    assert found[0] == found[1]


def test_its_numbers_are_sent_once():
    bench = Bench()
    runner, rows, ones = bench.driver.runner, [0], [1]
    first, second = (StepPlan(9 + step, [], [], [], rows, ones, [1 + step], rows) for step in range(2))
    runner.forward(first)
    runner.sample({}).result()
    with Launches() as told:
        runner.expect(second)
    assert told.counts == {"copy_": 1}
    bench.platform.counts.clear()
    with Launches() as launches:
        runner.forward(second)
        runner.sample({}).result()
    assert launches.counts + bench.platform.counts + told.counts == LEAST
