"""The worker in the engine's own process.

A GPU runs by itself, so the worker is the executor. On a CPU with more than one step in flight everything the
worker does happens in one thread of its own, in order, so that planning goes on beside it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from octavo.base.config import EngineConfig, Resolved
from octavo.base.plan import StepPlan, StepResult
from octavo.base.specs import KVLayout
from octavo.engine.exec.base import Executor, Pending
from octavo.worker.worker import Worker

T = TypeVar("T")


def InlineExecutor(files: Any, resolved: Resolved, config: EngineConfig) -> Executor:
    """The worker itself, or a thread that it lives in. Loads the weights."""

    def make() -> Worker:
        worker = Worker(files, resolved, config)
        worker.load()
        return worker

    if resolved.device == "cpu" and resolved.depth > 1:
        return ThreadedExecutor(make)
    return make()


class ThreadedExecutor:
    """Calls the worker in one thread. A step that fails raises from its own `Pending`, never from `forward`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-worker")
        self._forward: Future[None] | None = None
        self._closed = False
        try:
            self._worker = self._call(make)
        except BaseException:
            self._thread.shutdown()
            raise

    def kv_capacity(self) -> int:
        return int(self._call(self._worker.kv_capacity))

    def adopt(self, resolved: Resolved) -> None:
        self._call(lambda: self._worker.adopt(resolved))

    def kv_dtype(self) -> str:
        return str(self._worker.kv_dtype())

    def start(self, layout: KVLayout) -> None:
        self._call(lambda: self._worker.start(layout))

    def host_memory(self, length: int) -> Any:
        return self._worker.host_memory(length)

    def pin(self, array: Any) -> bool:
        return bool(self._worker.pin(array))

    def unpin(self, array: Any) -> None:
        self._worker.unpin(array)

    def expect(self, plan: StepPlan) -> None:
        """The thread has enough to do."""

    def forward(self, plan: StepPlan) -> None:
        self._forward = self._thread.submit(self._worker.forward, plan)

    def sample(self, riders: dict[str, Any]) -> Pending:
        forward, self._forward = self._forward, None

        def sample() -> StepResult:
            if forward is not None:
                forward.result()
            result: StepResult = self._worker.sample(riders).result()
            return result

        return self._thread.submit(sample)

    def prepare(self) -> bool:
        return bool(self._call(self._worker.prepare))

    def sleep(self, level: int) -> int:
        return int(self._call(lambda: self._worker.sleep(level)))

    def wake(self, tags: Sequence[str]) -> list[str]:
        return list(self._call(lambda: self._worker.wake(tags)))

    def shutdown(self) -> None:
        if not self._closed:
            self._closed = True
            self._thread.submit(self._worker.shutdown)
            self._thread.shutdown()

    def _call(self, work: Callable[[], T]) -> T:
        return self._thread.submit(work).result()
