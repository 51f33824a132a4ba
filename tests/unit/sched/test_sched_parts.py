"""Queue, end tests and the request's own arithmetic."""

import random

import pytest
from msgspec.structs import replace

from octavo.base.clock import FakeClock
from octavo.base.errors import ConfigError, Overloaded, UserError
from octavo.base.plan import NONE_LEFT
from octavo.base.scores import TokenLogprobs, read, write
from octavo.base.wire import EngineRequest, Sampling, TokenOutput
from octavo.kv.hashing import HashChain, chain_seed
from octavo.kv.holding import Holding
from octavo.sched.finish import BAD_LOGITS, NOTHING_ALLOWED, cut, failed
from octavo.sched.gates import RowPool, TokenGate
from octavo.sched.limits import Limits
from octavo.sched.policies import make_queue
from octavo.sched.request import Request

LIMITS = Limits(max_model_len=100, max_num_seqs=4, max_num_batched_tokens=64)


def request(prompt: int = 3, order: tuple[int, int] = (0, 0), max_model_len: int = 100, **sampling: object) -> Request:
    values = {"seed": 0, "max_tokens": 8, **sampling}
    wire = EngineRequest(id=f"r{order}", tokens=[9] * prompt, sampling=Sampling(**values))  # type: ignore[arg-type]
    return Request(wire, order, Holding(1, HashChain(16, chain_seed())), max_model_len)


@pytest.mark.parametrize("policy", ["fcfs", "fair", "priority"])
def test_queue_keeps_order_whatever_leaves(policy: str) -> None:
    rng = random.Random(1)
    queue = make_queue(replace(LIMITS, max_waiting=10_000, scheduling_policy=policy), FakeClock())
    inside = []
    for arrival in range(2000):
        entry = request(order=(rng.randrange(3), arrival))
        queue.push(entry)
        inside.append(entry)
        if rng.random() < 0.6:
            gone = inside.pop(rng.randrange(len(inside)))
            queue.remove(gone)
            if rng.random() < 0.3:  # preempted and back
                queue.push(gone)
                inside.append(gone)
    assert len(queue) == len(inside)
    assert queue.num_tokens == 3 * len(inside)
    for entry in sorted(inside, key=lambda entry: entry.order):
        assert queue.peek() is entry
        queue.remove(entry)
    assert queue.peek() is None


def test_queue_is_bounded_for_newcomers() -> None:
    queue = make_queue(replace(LIMITS, max_waiting=2, max_waiting_tokens=10), FakeClock())
    queue.check_room(1_000)  # an empty line takes any prompt
    queue.push(request(prompt=4, order=(0, 0)))
    queue.check_room(6)
    with pytest.raises(Overloaded):
        queue.check_room(7)
    queue.push(request(prompt=1, order=(0, 1)))
    with pytest.raises(Overloaded) as caught:
        queue.check_room(1)
    assert caught.value.status == 429
    assert caught.value.retry_after_s > 0


def test_policies() -> None:
    for policy in ("fcfs", "fair"):
        line = make_queue(replace(LIMITS, scheduling_policy=policy), FakeClock())
        assert line.order(0, 7) == (0, 7)
        with pytest.raises(UserError) as caught:
            line.order(1, 7)
        assert caught.value.param == "priority"
    by_priority = make_queue(replace(LIMITS, scheduling_policy="priority"), FakeClock())
    assert by_priority.order(-2, 7) < by_priority.order(0, 3) < by_priority.order(0, 4)
    with pytest.raises(ConfigError, match="lottery"):
        make_queue(replace(LIMITS, scheduling_policy="lottery"), FakeClock())


def test_who_finds_the_line_full_is_told_when_it_will_have_moved() -> None:
    clock = FakeClock()
    queue = make_queue(replace(LIMITS, max_waiting=80), clock)

    def told() -> float:
        with pytest.raises(Overloaded) as caught:
            queue.check_room(1)
        return caught.value.retry_after_s

    for arrival in range(80):
        queue.push(request(order=(0, arrival)))
    assert told() == 5.0, "nothing to measure by"
    for arrival in range(80, 160):  # two starts a second for forty seconds
        clock.advance(0.5)
        first = queue.peek()
        assert first is not None
        queue.take(first)
        queue.push(request(order=(0, arrival)))
    assert told() == pytest.approx(80 * 0.25 / 2, rel=0.15)
    clock.advance(3600)
    assert told() == 5.0


@pytest.mark.parametrize(
    ("sampling", "accepted", "want"),
    [
        ({}, [5], ([5], None, None)),
        ({"eos_token_ids": (5,)}, [5], ([5], "stop", 5)),
        ({"stop_token_ids": (5,)}, [4, 5, 6], ([4, 5], "stop", 5)),
        ({"eos_token_ids": (5,), "min_tokens": 2}, [5], ([5], None, None)),
        ({"eos_token_ids": (5,), "min_tokens": 2}, [5, 5], ([5, 5], "stop", 5)),
        (
            {"eos_token_ids": (5,), "stop_token_ids": (6,), "min_tokens": 2, "eos_ruled": True},
            [6, 5],
            ([6, 5], "stop", 5),
        ),
        ({"eos_token_ids": (5,), "min_tokens": 3, "eos_ruled": True}, [5], ([5], "stop", 5)),
        ({"max_tokens": 2}, [1, 2, 3], ([1, 2], "length", None)),
        ({"max_tokens": 1, "eos_token_ids": (5,)}, [5], ([5], "stop", 5)),
        ({"max_model_len": 5}, [1, 2, 3], ([1, 2], "length", None)),
        ({}, [-1], ([], "error", None)),
        ({}, [3, -1, 4], ([3], "error", None)),
        ({}, [3, NONE_LEFT], ([3], "error", None)),
    ],
)
def test_end_of_a_request(
    sampling: dict[str, int], accepted: list[int], want: tuple[list[int], str | None, int | None]
) -> None:
    assert cut(request(**sampling), accepted) == want  # type: ignore[arg-type]


def test_each_prompt_position_is_scored_once() -> None:
    def entries(start: int, end: int) -> bytes:
        return write([TokenLogprobs(position, 0.0, 1) for position in range(start, end)])

    scored = request(prompt=8, prompt_logprobs=0)
    assert not scored.may_hit
    assert [entry and entry.token for entry in read(scored.score(1, entries(1, 4)))] == [None, 1, 2, 3]
    # Preempted: computed from the beginning again, in other chunks.
    assert scored.score(1, entries(1, 3)) == b""
    assert [entry and entry.token for entry in read(scored.score(3, entries(3, 8)))] == [4, 5, 6, 7]
    assert scored.may_hit
    assert scored.score(1, entries(1, 8)) == b""


def test_rows_are_dropped_once() -> None:
    rows = RowPool(3)
    taken = [rows.take() for _ in range(3)]
    assert sorted(taken) == [0, 1, 2]
    rows.release(1)
    assert rows.num_free == 1
    assert (rows.take_dropped(), rows.take_dropped()) == ([1], [])


def test_token_gate_sets_one_aside_for_each_that_runs() -> None:
    gate = TokenGate(10)
    gate.open(4, int)
    entry = request()
    assert gate.allow(entry, 20) == 6
    gate.spend(entry, 6)
    assert gate.allow(entry, 1) == 0


def test_what_is_said_where_no_token_could_be_chosen() -> None:
    mine, models = (failed(TokenOutput("a", [3], "error"), token) for token in (NONE_LEFT, -1))
    assert (mine.error, mine.error_code, mine.error_name) == (NOTHING_ALLOWED, 400, "no_token_left")
    assert (models.error, models.error_code, models.tokens) == (BAD_LOGITS, 500, [3])
