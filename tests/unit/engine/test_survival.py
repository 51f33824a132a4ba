"""The parts of survival that need no process: policy, watchdog, journal, trial."""

import asyncio

import pytest
from engine_fakes import request

from octavo.base.clock import FakeClock
from octavo.base.scores import TokenLogprobs, write
from octavo.base.wire import Progress, TokenOutput
from octavo.engine.journal import Entry, Journal
from octavo.engine.replay import Trial
from octavo.engine.supervisor import MAX_BACKOFF_S, WINDOW_S, RestartPolicy
from octavo.engine.watchdog import QUIET_S, Watchdog


def test_restarts_come_slower_and_have_a_limit():
    clock = FakeClock()
    policy = RestartPolicy(4, clock)
    assert [policy.crashed() for _ in range(5)] == [0.0, 1.0, 2.0, 4.0, None]
    clock.advance(WINDOW_S + 1)
    assert policy.crashed() == 0.0, "what lies far back is forgotten"
    assert RestartPolicy(0, clock).crashed() is None
    patient = RestartPolicy(100, clock)
    assert max(patient.crashed() for _ in range(20)) == MAX_BACKOFF_S


class Hound:
    """A watchdog over a process whose processor time grows by `rate` a second."""

    def __init__(self, busy_s=60.0, rate=0.0):
        self.clock = FakeClock()
        self.cpu = 0.0
        self.rate = rate
        self.dog = Watchdog(self.clock, busy_s, lambda: self.cpu)

    def wait(self, seconds, step=1.0):
        """What it says in the end, and when."""
        for passed in range(int(seconds / step)):
            self.clock.advance(step)
            self.cpu += self.rate * step
            told = self.dog.look()
            if told:
                return told, (passed + 1) * step
        return None, seconds


def test_a_process_that_takes_no_processor_time_is_given_up_soon():
    told, when = Hound().wait(100)
    assert "nothing at all" in told
    assert QUIET_S <= when <= QUIET_S + 2


def test_a_step_that_computes_gets_its_time_and_no_more():
    told, when = Hound(rate=0.5).wait(100)
    assert "no step for 60 s" in told
    assert when == 60


def test_what_is_heard_counts():
    hound = Hound()
    for _ in range(50):
        assert hound.wait(8)[0] is None
        hound.dog.heard()


def test_a_clock_that_jumps_or_a_sleep_of_our_own_is_no_hang():
    hound = Hound()
    assert hound.wait(8)[0] is None
    assert hound.wait(86_400, step=86_400)[0] is None
    assert hound.wait(8)[0] is None
    assert hound.wait(8)[0] is not None


def test_an_entry_tells_how_far_it_came():
    entry = Entry(request("a", [1, 2, 3]))
    assert entry.resumed() is entry.request
    score = TokenLogprobs(1, -0.5, 1)
    entry.note(TokenOutput("a", [], prompt_logprobs=write([None, score]), cached_tokens=2, queued_s=0.5))
    entry.note(TokenOutput("a", [4], prompt_logprobs=write([score]), cached_tokens=9, queued_s=9.0))
    entry.note(TokenOutput("a", [5, 6]))
    again = entry.resumed()
    assert again.tokens == [1, 2, 3]
    assert again.progress == Progress([4, 5, 6], 3, 2, 0.5)
    assert again.sampling == entry.request.sampling


def crashed(on_trial=(), sent=("a", "b", "c"), journal=None):
    journal = journal or Journal()
    if not len(journal):
        for name in "abcd":
            journal.open(Entry(request(name, [1])))
    for name in sent:
        journal.get(name).sent = True
    return journal, [entry.request.id for entry in journal.crash(on_trial)]


def test_who_is_at_fault():
    journal, guilty = crashed()
    assert guilty == []
    assert [entry.request.id for entry in journal.unsent()] == ["a", "b", "c", "d"]
    _, guilty = crashed(on_trial={"b"}, journal=journal)
    assert guilty == ["b"], "a and c got past the place of the first crash"
    _, guilty = crashed(sent=("a", "d"), journal=journal)
    assert guilty == ["a"], "nobody was on trial, so it is who saw two crashes; d saw one"
    assert [entry.request.id for entry in journal] == ["c", "d"]


async def test_a_trial_is_over_when_all_are_through():
    trial = Trial()
    trial.begin(["a", "b"])
    waiting = asyncio.create_task(trial.over())
    trial.acquit("a")
    trial.acquit("stranger")
    await asyncio.sleep(0)
    assert not waiting.done()
    trial.acquit("b")
    await waiting
    trial.begin([])
    await asyncio.wait_for(trial.over(), 1)


@pytest.mark.parametrize("count", [1, 40])
async def test_a_trial_of_those_that_ended_holds_nobody_up(count):
    trial = Trial()
    trial.begin([str(i) for i in range(count)])
    for i in range(count):
        trial.acquit(str(i))
    await asyncio.wait_for(trial.over(), 1)
