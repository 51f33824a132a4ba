"""Faults on purpose: an executor, and a core round it, that fail, hang or die where they are told to."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from octavo.base.plan import StepPlan, StepResult
from octavo.engine.core import Core
from octavo.engine.exec.base import Executor, Pending

Stage = Literal["forward", "sample", "result", "plan", "update", "riders", "review", "add"]
Kind = Literal["raise", "memory", "device", "kill", "exit", "hang", "spin", "stop"]


class DeviceGone(RuntimeError):
    """As torch tells it."""

    def __init__(self) -> None:
        super().__init__("CUDA error: an illegal memory access was encountered")


class Fault(Struct, frozen=True, kw_only=True):
    """Something that goes wrong. What is not given is no condition.

    `request`: only in steps with this request; `at`: from this call on, counted over the steps that meet the other
    conditions; `times`: at most so often, in all processes that share `ledger`, an empty file to begin with.
    """

    stage: Stage = "result"
    kind: Kind = "raise"
    at: int = 0
    times: int = 1
    request: str = ""
    token: int = -1  # only in steps that compute a prompt with this token
    larger_than: int = 0  # only in steps of more tokens
    ledger: str = ""


class FaultyExecutor:
    """An executor with faults laid over it."""

    def __init__(self, inner: Executor, faults: list[Fault]) -> None:
        self._inner = inner
        self._faults = faults
        self._seen = [0] * len(faults)
        self._turns = [_Turns(fault) for fault in faults]
        self._rows: dict[int, tuple[str, frozenset[int]]] = {}
        self._plan: StepPlan | None = None

    def __getattr__(self, name: str) -> Any:
        """Nothing goes wrong elsewhere."""
        return getattr(self._inner, name)

    def forward(self, plan: StepPlan) -> None:
        """May fail before the real one has seen the plan, but for the rows: those it has taken."""
        self._plan = plan
        for row in plan.dropped:
            self._rows.pop(row, None)
        for added in plan.added:
            self._rows[added.row] = added.id, frozenset(added.tokens[: added.num_prompt])
        self._inner.forward(plan)
        try:
            self._strike("forward", plan)
        except BaseException:
            self._inner.sample({})
            raise

    def sample(self, riders: dict[str, Any]) -> Pending:
        """May fail, or give a result that fails."""
        plan = self._plan
        assert plan is not None
        pending = self._inner.sample(riders)
        self._strike("sample", plan)
        return _FaultyPending(self, plan, pending)

    def _strike(self, stage: Stage, plan: StepPlan) -> None:
        for place, fault in enumerate(self._faults):
            if fault.stage == stage and self._meets(fault, plan):
                self._seen[place] += 1
                if self._seen[place] > fault.at and self._turns[place].take():
                    happen(fault.kind)

    def _meets(self, fault: Fault, plan: StepPlan) -> bool:
        if plan.total_tokens <= fault.larger_than:
            return False
        rows = [self._rows[row] for row in plan.rows]
        if fault.request and all(id != fault.request for id, _ in rows):
            return False
        return fault.token < 0 or any(fault.token in prompt for _, prompt in rows)


class _Turns:
    """How often a fault may still happen, over all processes that share its ledger."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._taken = 0

    def take(self) -> bool:
        """Whether it may happen now."""
        fault = self._fault
        if fault.ledger:
            with Path(fault.ledger).open("ab") as file:
                if file.tell() >= fault.times:
                    return False
                file.write(b"x")
            return True
        self._taken += 1
        return self._taken <= fault.times


class _FaultyPending:
    def __init__(self, executor: FaultyExecutor, plan: StepPlan, inner: Pending) -> None:
        self._executor = executor
        self._plan = plan
        self._inner = inner

    def done(self) -> bool:
        return self._inner.done()

    def result(self) -> StepResult:
        result = self._inner.result()
        self._executor._strike("result", self._plan)
        return result


def lay_over(core: Core, faults: list[Fault]) -> None:
    """Let the core itself fail at the stages between its executor's."""
    places: dict[str, tuple[object, str]] = {
        "plan": (core.scheduler, "plan"),
        "update": (core.scheduler, "update"),
        "riders": (core._pipeline, "_riders"),
        "review": (core._seat, "review"),
        "add": (core, "add"),
    }
    for fault in faults:
        if fault.stage in places:
            owner, name = places[fault.stage]
            setattr(owner, name, _striking(fault, getattr(owner, name)))


def _striking(fault: Fault, call: Callable[..., Any]) -> Callable[..., Any]:
    turns, seen = _Turns(fault), 0

    def struck(*args: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen > fault.at and turns.take():
            happen(fault.kind)
        return call(*args)

    return struck


def happen(kind: Kind) -> None:
    """Let it happen, in this process."""
    if kind == "raise":
        raise ValueError("a fault on purpose")
    if kind == "memory":
        raise MemoryError("a lack of memory on purpose")
    if kind == "device":
        raise DeviceGone
    if kind == "exit":
        os._exit(7)
    if kind == "hang":
        time.sleep(3600)
    while kind == "spin":
        sum(range(1000))
    os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
