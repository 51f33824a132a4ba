"""The steady decode must stay cheap. The bound is loose, for busy machines; the aim is some 150 us."""

import time

from octavo.base.plan import StepResult
from octavo.base.specs import KVGroup, KVLayout, KVSpec
from octavo.base.wire import EngineRequest, Sampling
from octavo.sched.limits import Limits
from octavo.sched.scheduler import Scheduler


def test_256_rows_one_step_ahead() -> None:
    layout = KVLayout(groups=(KVGroup(KVSpec(1, 8), (0,)),), block_size=16, num_blocks=9000, dtype_bytes=2)
    scheduler = Scheduler(layout, Limits(max_model_len=4096, max_num_seqs=256, max_num_batched_tokens=65536))
    sampling = Sampling(seed=0, max_tokens=1000, eos_token_ids=(1, 2))
    for i in range(256):
        scheduler.add(EngineRequest(id=f"r{i}", tokens=[i + 3] * (100 + i % 16), sampling=sampling))
    ahead = scheduler.plan()
    times = []
    for step in range(200):
        began = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter()
        assert plan is not None
        assert ahead is not None
        result = StepResult(ahead.step, [7 + step % 3] * len(ahead.sample))
        told = time.perf_counter()
        outputs = scheduler.update(ahead, result)
        times.append(planned - began + time.perf_counter() - told)
        assert len(plan.rows) == len(outputs.ids) + len(outputs.outputs) == 256
        ahead = plan
    assert sorted(times)[len(times) // 4] < 0.001
