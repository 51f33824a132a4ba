"""Thousands of steps of the scheduler against the fake executor, everything checked after each."""

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from octavo.testing.sim import Simulation, random_world


def simulate(seed: int, events: int) -> Simulation:
    simulation = Simulation(random_world(Random(seed)), seed)
    for _ in range(events):
        simulation.random_event()
    simulation.drain()
    return simulation


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_seeded_runs(first: int) -> None:
    """Forty worlds; together they must have met every kind of trouble."""
    finishes: Counter[str] = Counter()
    preemptions = hits = 0
    for seed in range(first, first + 40):
        simulation = simulate(seed, 300)
        finishes += simulation.finishes
        stats = simulation.scheduler.stats()
        preemptions += stats.preemptions
        hits += stats.prefix_hits
    assert min(finishes[reason] for reason in ("stop", "length", "abort", "error")) > 20
    assert preemptions > 30
    assert hits > 1000


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_seeded_runs_long(first: int) -> None:
    for seed in range(first, first + 100):
        simulate(seed, 400)


class SchedulerMachine(RuleBasedStateMachine):
    """Hypothesis chooses the order of events and shrinks what fails."""

    @initialize(seed=st.integers(0, 1 << 16))
    def start(self, seed: int) -> None:
        self.simulation = Simulation(random_world(Random(seed)), seed)

    @rule(count=st.integers(1, 4))
    def add(self, count: int) -> None:
        for _ in range(count):
            self.simulation.add(self.simulation.random_request())

    @rule(pick=st.integers(0, 1 << 16))
    def abort(self, pick: int) -> None:
        ids = sorted(self.simulation.scheduler.board.requests)
        if ids:
            self.simulation.abort(ids[pick % len(ids)])

    @rule()
    def launch(self) -> None:
        self.simulation.launch()

    @rule()
    def land(self) -> None:
        self.simulation.land()

    @rule(steps=st.integers(1, 6))
    def steps(self, steps: int) -> None:
        for _ in range(steps):
            self.simulation.step()

    @rule()
    def forget_prefixes(self) -> None:
        self.simulation.scheduler.forget_prefixes()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.check()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.drain()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
