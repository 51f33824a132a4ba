"""The fake executor must accept right plans and find each kind of wrong one."""

from typing import Any

import pytest

from octavo.base.errors import EngineError
from octavo.base.plan import AddedRow, NewBlocks, StepPlan
from octavo.base.scores import read
from octavo.base.specs import KVGroup, KVLayout, KVSpec
from octavo.base.wire import Sampling
from octavo.testing.fake_executor import FakeExecutor, PlanViolation, expected_tokens

GREEDY = Sampling(seed=0, max_tokens=8, temperature=0.0)
PROMPT = [5, 6, 7, 8, 9, 10]


def make(**options: Any) -> FakeExecutor:
    fake = FakeExecutor(100, **options)
    full = KVGroup(KVSpec(1, 8), (0,))
    sliding = KVGroup(KVSpec(1, 8, window=4), (1,))
    fake.start(KVLayout(groups=(full, sliding), block_size=4, num_blocks=16, dtype_bytes=2))
    return fake


def added(row: int = 0, blocks: list[list[int]] | None = None, **changes: Any) -> AddedRow:
    values: dict[str, Any] = {
        "row": row,
        "id": f"r{row}",
        "tokens": list(PROMPT),
        "num_prompt": len(PROMPT),
        "num_computed": 0,
        "sampling": GREEDY,
        "blocks": blocks or [[1, 2], [3, 4]],
    }
    return AddedRow(**(values | changes))


def plan(step: int, rows: list[int], counts: list[int], starts: list[int], sample: list[int], **more: Any) -> StepPlan:
    values: dict[str, Any] = {"dropped": [], "added": [], "new_blocks": []}
    return StepPlan(step=step, rows=rows, num_tokens=counts, starts=starts, sample=sample, **(values | more))


def run(fake: FakeExecutor, step: StepPlan) -> list[int]:
    fake.forward(step)
    return fake.sample({}).result().tokens


def test_tokens_are_those_of_the_pure_function() -> None:
    fake = make()
    want, reason = expected_tokens(fake.next_token, PROMPT, GREEDY)
    assert reason == "length"
    got = run(fake, plan(1, [0], [6], [0], [0], added=[added()]))
    got += run(fake, plan(2, [0], [1], [6], [0]))
    got += run(fake, plan(3, [0], [1], [7], [0]))
    got += run(fake, plan(4, [0], [1], [8], [0], new_blocks=[NewBlocks([0, 0], [0, 1], [2, 2], [5, 6])]))
    assert got == want[:4]


def test_shared_prefix_is_read_not_recomputed() -> None:
    fake = make()
    run(fake, plan(1, [0], [6], [0], [0], added=[added()]))
    second = added(1, [[1, 5], [3, 6]], num_computed=4)
    got = run(fake, plan(2, [0, 1], [1, 2], [6, 4], [0, 1], added=[second]))
    assert got[1] == expected_tokens(fake.next_token, PROMPT, GREEDY)[0][0]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (plan(1, [3], [1], [0], []), "nobody has it"),
        (plan(1, [0], [6], [1], [0], added=[added()]), "starts at 1"),
        (plan(1, [0], [7], [0], [0], added=[added()]), "of 6 known"),
        (plan(1, [0], [6], [0], [], added=[added()]), "sample"),
        (plan(1, [0], [6], [0], [0], added=[added(blocks=[[1, 0], [3, 4]])]), "block 0"),
        (plan(1, [0], [6], [0], [0], added=[added(blocks=[[1], [3, 4]])]), "no block"),
        (plan(1, [0], [6], [0], [0], added=[added(blocks=[[1, 2], [3, 2]])]), "write block 2"),
        (plan(1, [0], [2], [4], [0], added=[added(num_computed=4)]), "not its own"),
        (plan(1, [0], [6], [0], [0], added=[added()], dropped=[2]), "dropped"),
        (plan(1, [0], [6], [0], [0], added=[added(tokens=[*PROMPT[:-1], 100])]), "vocabulary"),
    ],
)
def test_wrong_plans_are_found(wrong: StepPlan, says: str) -> None:
    with pytest.raises(PlanViolation, match=says):
        make().forward(wrong)


def test_writing_to_a_shared_block_is_found() -> None:
    fake = make()
    run(fake, plan(1, [0], [6], [0], [0], added=[added()]))
    thief = added(1, [[7, 2], [8, 9]])
    with pytest.raises(PlanViolation, match="reads"):
        fake.forward(plan(2, [1], [6], [0], [0], added=[thief]))


def test_a_row_may_read_what_another_writes_in_the_step_that_adds_it() -> None:
    fake = make()
    second = added(1, [[1, 5], [3, 6]], num_computed=4)
    got = run(fake, plan(1, [0, 1], [6, 2], [0, 4], [0, 1], added=[added(), second]))
    assert got[0] == got[1]


def test_old_blocks_of_a_sliding_group_may_go_to_others() -> None:
    fake = make()
    first = added(tokens=[*PROMPT, 1, 2], num_prompt=8)
    run(fake, plan(1, [0], [8], [0], [0], added=[first]))
    # Row 0 now sees positions 5 and later in its sliding group: block 3 (positions 0 to 3) is free again.
    more = [NewBlocks([0, 0], [0, 1], [2, 2], [5, 6])]
    run(fake, plan(2, [0, 1], [1, 6], [8, 0], [0, 1], added=[added(1, [[7, 8], [3, 9]])], new_blocks=more))


def test_injected_failure_poisons_what_the_step_wrote() -> None:
    fake = make(fail_steps=[1])
    fake.forward(plan(1, [0], [6], [0], [0], added=[added()]))
    pending = fake.sample({})
    fake.forward(plan(2, [1], [2], [4], [0], added=[added(1, [[1, 5], [3, 6]], num_computed=4)]))
    with pytest.raises(EngineError):
        fake.sample({}).result()  # planned before the failure was known: fails as well
    with pytest.raises(EngineError):
        pending.result()
    with pytest.raises(PlanViolation, match="failed step"):
        fake.forward(plan(3, [2], [2], [4], [0], added=[added(2, [[1, 7], [3, 8]], num_computed=4)]))


def test_bad_logits_give_minus_one() -> None:
    fake = make(bad_logits=["r0"])
    assert run(fake, plan(1, [0], [6], [0], [0], added=[added()])) == [-1]
    assert run(fake, plan(2, [0], [1], [6], [0])) == [-1]


def test_logprobs_of_prompt_in_chunks() -> None:
    fake = make()
    sampling = Sampling(seed=0, max_tokens=2, temperature=0.0, logprobs=2, prompt_logprobs=1)
    fake.forward(plan(1, [0], [4], [0], [], added=[added(sampling=sampling)]))
    first = fake.sample({}).result()
    fake.forward(plan(2, [0], [2], [4], [0]))
    second = fake.sample({}).result()
    found = read(first.prompt_logprobs[0] + second.prompt_logprobs[0])
    assert [entry and entry.token for entry in found] == PROMPT[1:]
    (line,) = read(second.logprobs[0])
    assert line is not None
    assert line.token == second.tokens[0]
