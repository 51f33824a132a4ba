"""The engine's core over a device that answers at once: what planning and update cost. No torch."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.base.config import Resolved
from octavo.base.plan import StepPlan, StepResult
from octavo.base.specs import KVGroup, KVLayout, KVSpec
from octavo.base.wire import EngineRequest, Sampling
from octavo.engine.core import Core
from octavo.sched.limits import Limits
from octavo.sched.scheduler import Scheduler

DEPTH = 2
BLOCK = 16
TOKEN = 7


class _Answer:
    """A result that is there already."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result

    def done(self) -> bool:
        return True


class NullExecutor:
    """An executor without a device: each sampled row gets the same token."""

    def __init__(self) -> None:
        self._plan: StepPlan | None = None

    def kv_capacity(self) -> int:
        return 0

    def adopt(self, resolved: Resolved) -> None:
        del resolved

    def kv_dtype(self) -> str:
        return "bfloat16"

    def start(self, layout: KVLayout) -> None:
        del layout

    def host_memory(self, length: int) -> Any:
        return np.empty(length, dtype=np.int32)

    def pin(self, array: Any) -> bool:
        del array
        return True

    def unpin(self, array: Any) -> None:
        """It is as it was."""

    def expect(self, plan: StepPlan) -> None:
        """Nothing is prepared."""

    def forward(self, plan: StepPlan) -> None:
        self._plan = plan

    def sample(self, riders: dict[str, Any]) -> _Answer:
        del riders
        assert self._plan is not None
        return _Answer(StepResult(self._plan.step, [TOKEN] * len(self._plan.sample)))

    def prepare(self) -> bool:
        return False

    def sleep(self, level: int) -> int:
        del level
        return 0

    def wake(self, tags: Sequence[str]) -> list[str]:
        del tags
        return []

    def shutdown(self) -> None:
        self._plan = None


def step_seconds(rows: int, *, prompt: int, steps: int) -> float:
    """Mean seconds of a step in which `rows` requests decode, each at another place of its block."""
    blocks = 1 + rows * (3 + (prompt + BLOCK + steps + DEPTH) // BLOCK)
    layout = KVLayout((KVGroup(KVSpec(8, 128), tuple(range(28))),), block_size=BLOCK, num_blocks=blocks, dtype_bytes=2)
    limits = Limits(max_model_len=40_960, max_num_seqs=rows, max_num_batched_tokens=max(16_384, rows))
    core = Core(Scheduler(layout, limits), NullExecutor(), DEPTH)
    sampling = Sampling(seed=0, max_tokens=steps + DEPTH, eos_token_ids=())
    for index in range(rows):
        core.add(EngineRequest(id=f"r{index}", tokens=[index + 8] * (prompt + index % BLOCK), sampling=sampling))
    times = []
    while core.has_work:
        begin = time.perf_counter()
        outputs = core.step()
        took = time.perf_counter() - begin
        if outputs is not None and len(outputs.ids) == rows:
            times.append(took)
    core.shutdown()
    if not times:
        raise RuntimeError("no step had all rows in it")
    return statistics.mean(sorted(times)[: -len(times) // 20 or None])  # without what others did to a few of them
