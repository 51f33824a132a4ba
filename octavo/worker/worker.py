"""Worker: one device with its model. What an executor wraps: load, measure, start, then steps until shutdown."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from octavo import __version__
from octavo.base.config import EngineConfig, Resolved
from octavo.base.errors import EngineError, NoRoom
from octavo.base.human import format_bytes
from octavo.base.plan import StepPlan
from octavo.base.specs import KVLayout, cache_specs, group_layers
from octavo.nn.quant.base import Empty
from octavo.platform.arena import KV_CACHE, WEIGHTS
from octavo.platform.limits import core_limit
from octavo.platform.registry import select
from octavo.worker import remembered
from octavo.worker.assemble import build_runner, weight_method
from octavo.worker.capacity import Need, check_host, measure, on_device, on_host
from octavo.worker.pending import FailedPending, StepPending
from octavo.worker.runner import Runner
from octavo.worker.scratch import (
    PROBE_BLOCKS,
    drop_plan,
    largest_plan,
    next_plan,
    prompt_tokens,
    small_plan,
    smallest_plan,
)
from octavo.worker.shortage import forget_frames, short_of_memory
from octavo.worker.sleeper import Sleeper

if TYPE_CHECKING:
    from octavo.models.decoder import Decoder
    from octavo.weights.facts import ModelFiles
    from octavo.worker.rehearsal import Rehearsal

log = logging.getLogger(__name__)

MAX_COMPILERS = 16


class Worker:
    """Owns the device's memory. Not safe for several threads; the executor calls it from one.

    ``Worker(files, resolved, config)``, then `load`, `kv_capacity`, `start`; then pairs of `forward` and `sample`.
    """

    def __init__(self, files: "ModelFiles", resolved: Resolved, config: EngineConfig) -> None:
        from octavo.kernels.ops import select as select_ops

        self._files = files
        self._arch = files.arch
        self._resolved = resolved
        self._config = config
        self._platform = select(resolved.device)
        self._platform.prepare(resolved.threads)
        self._dtype: torch.dtype = getattr(torch, resolved.dtype)
        self._kv_dtype = self._dtype
        self._ops = select_ops(self._platform.device, config.device.attention_backend)
        self._free_at_start = self._platform.memory()[0]
        self._memory = self._platform.arena()
        self._sleeper = Sleeper(self._platform, self._memory, self._drop_weights, self._fill)
        self._rehearsal: Rehearsal | None = None
        self._decoder: Decoder | None = None
        self._model: Any = None  # worker/model.Model
        self._runner: Runner | None = None

    def load(self) -> None:
        """Build the model and fill its weights. Raises ModelFileError, or ConfigError when they do not fit."""
        wanted = self._arch.num_parameters() * self._dtype.itemsize
        what = f"the model, {format_bytes(wanted)} in {self._resolved.dtype},"
        if not self._platform.counts_memory:
            check_host(self._files.weight_bytes, "the model")
        self._rehearsal = self._rehearse()
        with _fitting(what, self._free_at_start, "take a smaller one, a smaller --dtype, or --device cpu"):
            self._load()
        if self._rehearsal is not None:
            self._rehearsal.first_done()

    def _rehearse(self) -> "Rehearsal | None":
        """Have kernels compiled while the weights are read, where there is something to compile."""
        if self._ops.compiler is None:
            return None
        from octavo.worker.rehearsal import Part, Rehearsal

        part = Part(
            arch=self._arch,
            resolved=self._resolved,
            layout=self._probe(),
            kv_dtype=self._kv_dtype,
            warm_tokens=prompt_tokens(self._resolved),
            capture=not self._config.device.enforce_eager,
        )
        return Rehearsal(self._ops, part, self._ops.compiler(min(MAX_COMPILERS, max(1, core_limit() - 1))))

    def _load(self) -> None:
        from octavo.models.decoder import build
        from octavo.models.native import accelerate

        self._decoder = build(
            self._arch,
            self._ops,
            self._dtype,
            self._platform.device,
            max_position=self._resolved.max_model_len,
            method=weight_method(self._config, self._resolved, self._files),
            empty=partial(self._memory.tensor, WEIGHTS),
        )
        self._fill()
        self._model, self._kv_dtype = accelerate(self._decoder, self._resolved.block_size, self._config, self._dtype)

    def kv_dtype(self) -> str:
        """Type of the KV cache, as the configuration names it."""
        return str(self._kv_dtype).removeprefix("torch.")

    def _fill(self) -> None:
        """Read all weights into their places, at the start or anew."""
        from octavo.weights.load import load_weights
        from octavo.weights.source import open_source

        assert self._decoder is not None
        source = open_source(self._files, seed=self._config.model.seed, device=self._platform.device)
        load_weights(self._decoder, source, path=str(self._files.path))
        self._decoder.embedding.method.loaded()
        if self._model is not None:
            self._model.weights_loaded()

    def _drop_weights(self) -> int:
        return int(self._model.drop_weights())

    def kv_capacity(self) -> int:
        """Bytes that the KV cache may take. On a GPU the largest possible step is run to see what
        it needs, once for a model, its settings and the device; later starts remember."""
        if not self._platform.counts_memory:
            return on_host(self._platform, self._resolved, self._probe().groups, self._kv_dtype.itemsize)
        key = remembered.key_of(__version__, torch.__version__, self._platform.identity(), self._arch, self._resolved)
        need = remembered.recall(key)
        measured = need is None
        if need is None:
            need = self._measure()
            remembered.remember(key, need)
        return on_device(
            self._platform,
            self._config.cache,
            need,
            libraries_loaded=measured,
            free_at_start=self._free_at_start,
        )

    def adopt(self, resolved: Resolved) -> None:
        """Take these settings instead, before `start`."""
        self._resolved = resolved

    def _probe(self) -> KVLayout:
        groups = group_layers(cache_specs(self._arch.kv_specs(), self.kv_dtype()))
        return KVLayout(groups, self._resolved.block_size, PROBE_BLOCKS, self._kv_dtype.itemsize)

    def _measure(self) -> Need:
        probe = self._probe()
        plan = largest_plan(
            probe,
            self._resolved.max_num_seqs,
            self._resolved.max_num_batched_tokens,
            self._resolved.max_model_len,
        )
        free, _ = self._platform.memory()
        size = f"{self._resolved.max_num_batched_tokens} tokens of {self._resolved.max_num_seqs} requests"
        what = f"the largest step, {size},"
        # The rules' operations load while kernels of the largest step are still being compiled.
        first = smallest_plan(probe)
        with _fitting(what, free, "lower --max-num-batched-tokens, --max-num-seqs or --max-model-len"):
            return measure(self._platform, lambda: _run(self._build(probe), first, drop_plan(first), plan))

    def start(self, layout: KVLayout) -> None:
        """Allocate the KV cache and the request table, and run a first step on scratch rows."""
        # A host compiles nothing in its first steps: one token brings the weights' pages.
        compiles = self._platform.counts_memory
        plan = small_plan(layout, prompt_tokens(self._resolved) if compiles else 1)
        more = [next_plan(plan)] if compiles else []
        free, _ = self._platform.memory()
        what = f"a KV cache of {format_bytes(layout.num_blocks * layout.block_bytes)}"
        try:
            with _fitting(what, free, "lower --gpu-memory-utilization or --kv-cache-memory-bytes"):
                runner = self._build(layout, zeros=partial(self._memory.zeros, KV_CACHE))
                _run(runner, plan, *more, drop_plan(plan))
        except NoRoom:
            self._platform.release()
            self._memory.discard(KV_CACHE)
            raise
        self._runner = runner
        if self._rehearsal is not None:
            self._rehearsal.go_on()
        log.debug("operations: %s", self._ops.names)

    def host_memory(self, length: int) -> Any:
        """An array of so many int32 from which riders reach the device in one copy."""
        return self._platform.staging(length).numpy()

    def pin(self, array: Any) -> bool:
        """Have riders reach the device like that from an array that is there already; False: that cannot be."""
        return self._platform.pin(torch.from_numpy(array))

    def unpin(self, array: Any) -> None:
        """Undo that, no step being in flight."""
        self._platform.unpin(torch.from_numpy(array))

    def forward(self, plan: StepPlan) -> None:
        """Enqueue the model's part of a step."""
        self._started().forward(plan)

    def expect(self, plan: StepPlan) -> None:
        """Prepare the model's part of the next step, as far as that needs nothing from the sampling before it."""
        self._started().expect(plan)

    def sample(self, riders: dict[str, Any]) -> StepPending | FailedPending:
        """Enqueue the sampling of the step last given to `forward`."""
        pending = self._started().sample(riders)
        if isinstance(pending, FailedPending) and short_of_memory(pending.error):
            forget_frames(pending.error)
            self._platform.release()  # a smaller step may find room then
        return pending

    def prepare(self) -> bool:
        """Use a quiet moment to make later steps cheaper; True while there is more to do."""
        return not self._sleeper.down and self._started().prepare()

    def sleep(self, level: int) -> int:
        """Give memory back; see worker/sleeper.py. The worker takes no step until all of it is there again."""
        return self._sleeper.sleep(level)

    def wake(self, tags: Sequence[str]) -> list[str]:
        """Bring memory back; the tags that are still down."""
        return sorted(self._sleeper.wake(tags))

    def shutdown(self) -> None:
        """Let go of everything on the device. May be called twice."""
        if self._rehearsal is not None:
            self._rehearsal.close()
        self._runner = None
        self._model = None
        self._decoder = None
        try:
            self._platform.release()
            self._platform.synchronize()
            self._memory.close()
        except RuntimeError as error:  # a device that has failed takes no more orders; its memory goes with the process
            log.debug("the device did not let go: %s", error)

    def _build(self, layout: KVLayout, zeros: Empty | None = None) -> Runner:
        if self._model is None:
            raise EngineError("the worker has no weights; call load() first")
        return build_runner(
            self._platform,
            self._ops,
            self._model,
            layout,
            self._resolved,
            self._arch.vocab_size,
            capture=not self._config.device.enforce_eager,
            group=self._arch.query_group,
            kv_dtype=self._kv_dtype,
            zeros=zeros,
        )

    def _started(self) -> Runner:
        if self._runner is None:
            raise EngineError("the worker is not started")
        if self._sleeper.down:
            raise EngineError("the worker is asleep")
        return self._runner


@contextmanager
def _fitting(what: str, free: int, remedy: str) -> Iterator[None]:
    """Turn a lack of memory at start-up into one line that says what to do. `free`: bytes that there were."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or isinstance(error.__cause__ or error, torch.OutOfMemoryError):
            raise NoRoom(f"{what} does not fit: {format_bytes(free)} of memory are free; {remedy}") from error
        raise


def _run(runner: Runner, *plans: StepPlan) -> None:
    """Plans in order, each waited for. Raises EngineError."""
    for plan in plans:
        runner.forward(plan)
        runner.sample({}).result()
