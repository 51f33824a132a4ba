"""The inline executor over a worker that is a FakeExecutor, directly and in a thread."""

import threading

import engine_fakes as fakes
import pytest
from engine_fakes import expected, request, run

from octavo.base.errors import EngineError
from octavo.engine.assemble import Phases, finish
from octavo.engine.exec.inline import ThreadedExecutor
from octavo.engine.exec.registry import EXECUTORS
from octavo.engine.resolve import resolve
from octavo.testing.fake_executor import FakeExecutor


class FakeWorker(FakeExecutor):
    def __init__(self, **values):
        super().__init__(fakes.VOCAB, **values)
        self.threads = set()

    def forward(self, plan):
        self.threads.add(threading.current_thread().name)
        super().forward(plan)


def core_over(executor, depth):
    config = fakes.config(depth=depth)
    resolved = resolve(config, fakes.ARCH, fakes.MACHINE)
    return finish(config, resolved, fakes.ARCH.kv_specs(), fakes.VOCAB, executor, Phases()).core


@pytest.mark.parametrize(("kind", "depth"), [(None, 1), (ThreadedExecutor, 1), (ThreadedExecutor, 2)])
def test_same_tokens_whichever_thread(kind, depth):
    worker = FakeWorker()
    core = core_over(kind(lambda: worker) if kind else worker, depth)
    wanted = [request(f"r{i}", list(range(i, 2 * i + 3)), max_tokens=12) for i in range(10)]
    for one in wanted:
        core.add(one)
    assert {name: result[:2] for name, result in run(core).items()} == {one.id: expected(one) for one in wanted}
    core.shutdown()
    core.shutdown()
    assert worker.closed
    own = threading.current_thread().name
    assert (worker.threads == {own}) == (kind is None)
    assert len(worker.threads) == 1


def test_planning_goes_on_beside_a_threaded_step():
    gate = threading.Event()

    class Gated(FakeWorker):
        def forward(self, plan):
            assert gate.wait(30)
            super().forward(plan)

    executor = ThreadedExecutor(Gated)
    core = core_over(executor, 2)
    core.add(request("a", [1, 2, 3], max_tokens=2))
    plan = core.scheduler.plan()
    executor.forward(plan)
    pending = executor.sample({})
    assert not pending.done()
    gate.set()
    assert pending.result().step == plan.step
    executor.shutdown()


@pytest.mark.parametrize("where", ["forward", "sample"])
def test_a_failure_in_the_thread_comes_out_of_its_own_result(where):
    worker = FakeWorker()
    executor = ThreadedExecutor(lambda: worker)
    core = core_over(executor, 2)

    def broken(_):
        raise EngineError("broken")

    setattr(worker, where, broken)
    core.add(request("a", [1]))
    assert run(core)["a"][1] == "error"
    core.shutdown()


def test_a_worker_that_cannot_be_made_leaves_no_thread():
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        ThreadedExecutor(lambda: 1 / 0)
    assert threading.active_count() == before


def test_contract_of_the_registry():
    for name in EXECUTORS:
        assert callable(EXECUTORS.get(name))
        assert EXECUTORS.get(name).__doc__
