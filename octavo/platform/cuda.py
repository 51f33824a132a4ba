"""One NVIDIA GPU through torch: pinned host memory, copies that do not wait, the current stream's events."""

import gc
from collections.abc import Callable
from typing import Any, Generic

import torch

from octavo.base.errors import ConfigError
from octavo.platform import device_memory
from octavo.platform.arena import Arena, NoArena, TaggedMemory
from octavo.platform.base import Captured, Cut, Event, Facts, T
from octavo.platform.limits import core_limit
from octavo.platform.pinned import Aside, put_aside


def _run(work: Callable[[], T]) -> T:
    return work()


class _Graphs(Generic[T]):
    """CUDA graphs, one behind the other, and the tensors that they leave their results in."""

    def __init__(self, graphs: list[torch.cuda.CUDAGraph], result: T) -> None:
        self._graphs = graphs
        self._result = result

    def replay(self) -> T:
        for graph in self._graphs:
            graph.replay()
        return self._result


class CudaPlatform:
    """Platform over one CUDA device. All work is enqueued on the current stream, so later work sees earlier."""

    name = "cuda"
    counts_memory = True

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        self._graph_pool: Any = None
        self._graph_stream: Any = None
        self._stream: Any = None

    @staticmethod
    def missing() -> str:
        """Why it cannot be used; empty: it can."""
        if torch.version.cuda is None:
            return "this torch was built without CUDA"
        return "" if torch.cuda.device_count() > 0 else "torch finds no CUDA device"

    def facts(self) -> Facts:
        free, total = self.memory()
        major, minor = torch.cuda.get_device_capability(self.device)
        # bf16 arithmetic came with compute capability 8.0 (Ampere).
        dtypes = ("bfloat16", "float16", "float32") if major >= 8 else ("float16", "float32")
        return Facts(
            device="cuda",
            name=torch.cuda.get_device_name(self.device),
            total_memory=total,
            free_memory=free,
            cores=core_limit(),
            dtypes=dtypes,
            asynchronous=True,
            capability=(major, minor),
        )

    def identity(self) -> str:
        properties = torch.cuda.get_device_properties(self.device)
        return f"{properties.name} {properties.total_memory}"

    def memory(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(self.device)
        return free, total

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def arena(self) -> TaggedMemory:
        """Over CUDA's virtual memory, tried once; where it does not work, torch's own memory that stays."""
        api = device_memory.driver()
        if api is None:
            return NoArena(self.device, "cuda-bindings is not installed")
        total = self.memory()[1]  # makes the context, too
        try:
            probe = Arena(device_memory.DeviceBacking(self.device.index, api), total)
            probe.tensor("probe", (1,), torch.uint8).zero_()
            self.synchronize()
            probe.close()
            return Arena(device_memory.DeviceBacking(self.device.index, api), total)
        except (RuntimeError, MemoryError) as error:
            return NoArena(self.device, f"CUDA's virtual memory does not work here: {str(error).splitlines()[0]}")

    def set_aside(self, memory: TaggedMemory, tag: str) -> Aside:
        return put_aside(memory, tag, device_memory.driver(), self.device.index)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def staging(self, length: int) -> torch.Tensor:
        return torch.zeros(length, dtype=torch.int32, pin_memory=True)

    def pin(self, host: torch.Tensor) -> bool:
        code = torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.nbytes, 0)  # type: ignore[no-untyped-call]
        return int(code) == 0

    def unpin(self, host: torch.Tensor) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.cudart().cudaHostUnregister(host.data_ptr())  # type: ignore[no-untyped-call]

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self.device, non_blocking=True)

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        # Torch's pinned allocator keeps this memory out of reuse until the copy has passed.
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def event(self) -> Event:
        if self._stream is None:  # asked for once: all work is enqueued on one stream, and to ask costs as much again
            self._stream = torch.cuda.current_stream(self.device)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def capture(
        self, work: Callable[[Cut], T], rehearse: Callable[[Callable[[], T]], object] | None = None
    ) -> Captured[T]:
        if self._graph_pool is None:
            # Graphs that are captured on one stream leave each other their memory.
            self._graph_pool = torch.cuda.graph_pool_handle()
            self._graph_stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        # Once outside: libraries and kernels set themselves up at their first call, which a capture cannot hold.
        stream = self._graph_stream
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            (rehearse or _run)(lambda: work(lambda: None))
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graphs = [torch.cuda.CUDAGraph()]

        def cut() -> None:
            graphs[-1].capture_end()
            graphs.append(torch.cuda.CUDAGraph())
            graphs[-1].capture_begin(pool=self._graph_pool)

        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # for the graphs' pool to have room
        with torch.cuda.stream(stream):
            graphs[0].capture_begin(pool=self._graph_pool)
            try:
                result = work(cut)
            finally:
                graphs[-1].capture_end()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return _Graphs(graphs, result)

    def start_peak(self) -> int:
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)

    def peak(self) -> int:
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device)

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def trim(self) -> None:
        torch.cuda.empty_cache()

    def prepare(self, threads: int) -> None:
        torch.set_num_threads(threads)
        try:
            torch.cuda.set_device(self.device)
        except RuntimeError as error:
            raise ConfigError(f"device 'cuda' cannot be used: {str(error).splitlines()[0]}") from error
