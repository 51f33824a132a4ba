"""An engine on a GPU to which something real happens: what the drills of tests/faults only tell of."""

import os
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
import triton
import triton.language as tl

from octavo.base.config import EngineConfig
from octavo.base.plan import StepPlan
from octavo.engine import assemble as root
from octavo.engine.exec.inline import InlineExecutor

VARIABLE = "OCTAVO_TEST_GPU_FAULT"


class RealFault(msgspec.Struct, frozen=True, kw_only=True):
    """`at`: before this step, counted from the first, and only if the file `ledger` is not there yet.

    illegal: a kernel writes where no memory is. assertion: an index out of range. memory: no step of more than
    `larger_than` tokens can allocate, from then on, as often as it is tried.
    """

    kind: Literal["illegal", "assertion", "memory"]
    at: int
    ledger: str
    larger_than: int = 0


@triton.jit
def _write_nowhere(ptr):
    tl.store(ptr + (1 << 44) + tl.program_id(0), 1)


def happen(kind: str) -> None:
    """Enqueue it; the host hears of it later, as of any error of a device."""
    if kind == "illegal":
        _write_nowhere[(1,)](torch.zeros(8, dtype=torch.int64, device="cuda"))
    else:
        torch.zeros(8, device="cuda")[torch.tensor([1 << 40], device="cuda")]


class StruckExecutor:
    """The real one, but for what happens before one of its steps."""

    def __init__(self, inner: InlineExecutor, fault: RealFault | None) -> None:
        self._inner = inner
        self._fault = fault
        self._steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, plan: StepPlan) -> None:
        fault = self._fault
        self._steps += 1
        if fault is None or self._steps <= fault.at:
            return self._inner.forward(plan)
        if fault.kind == "memory":
            return self._cramped(fault, plan)
        if not Path(fault.ledger).exists():
            Path(fault.ledger).touch()
            happen(fault.kind)
        return self._inner.forward(plan)

    def _cramped(self, fault: RealFault, plan: StepPlan) -> None:
        if plan.total_tokens <= fault.larger_than:
            return self._inner.forward(plan)
        with Path(fault.ledger).open("ab") as file:
            file.write(b"x")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(0.0001)
        try:
            return self._inner.forward(plan)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)


def assemble(config: EngineConfig) -> root.Engine:
    """As engine/assemble does, with the executor replaced."""
    told = os.environ.get(VARIABLE)
    fault = msgspec.json.decode(told, type=RealFault) if told else None
    plain = root.EXECUTORS

    class Struck:
        def get(self, name: str) -> Any:
            make = plain.get(name)
            return lambda *args: StruckExecutor(make(*args), fault)

    root.EXECUTORS = Struck()  # type: ignore[assignment]
    try:
        return root.assemble(config)
    finally:
        root.EXECUTORS = plain
