"""Worker: one device with its model. What an executor wraps: load, measure, start, then steps until shutdown."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from octavo import __version__
from octavo.base.config import EngineConfig, Resolved
from octavo.base.errors import ConfigError, EngineError
from octavo.base.plan import StepPlan
from octavo.base.specs import KVGroup, KVLayout, cache_specs, group_layers
from octavo.platform.registry import select
from octavo.worker import remembered
from octavo.worker.assemble import build_runner, weight_method
from octavo.worker.capacity import Need, measure, on_device, on_host
from octavo.worker.head.generate import Model
from octavo.worker.pending import FailedPending, StepPending
from octavo.worker.runner import Runner
from octavo.worker.scratch import drop_plan, largest_plan, next_plan, small_plan

if TYPE_CHECKING:
    from octavo.weights.facts import ModelFiles

log = logging.getLogger(__name__)

_PROBE_BLOCKS = 2  # scratch plans write block 0 only
_WARM_TOKENS = 16


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
        self._model: Model | None = None
        self._runner: Runner | None = None

    def load(self) -> None:
        """Build the model and fill its weights. Raises ModelFileError, or ConfigError when they do not fit."""
        with _fitting("the model", "take a smaller one, or a smaller dtype"):
            self._load()

    def _load(self) -> None:
        from octavo.models.decoder import build
        from octavo.models.native import accelerate
        from octavo.weights.load import load_weights
        from octavo.weights.source import open_source

        model = build(
            self._arch,
            self._ops,
            self._dtype,
            self._platform.device,
            max_position=self._resolved.max_model_len,
            method=weight_method(self._config, self._resolved, self._files),
        )
        source = open_source(self._files, seed=self._config.model.seed, device=self._platform.device)
        load_weights(model, source, path=str(self._files.path))
        model.embedding.method.loaded()
        self._model, self._kv_dtype = accelerate(model, self._resolved.block_size, self._config)

    def kv_dtype(self) -> str:
        """Type of the KV cache, as the configuration names it."""
        return str(self._kv_dtype).removeprefix("torch.")

    def kv_capacity(self) -> int:
        """Bytes that the KV cache may take. On a GPU the largest possible step is run to see what
        it needs, once for a model, its settings and the device; later starts remember."""
        groups = group_layers(cache_specs(self._arch.kv_specs(), self.kv_dtype()))
        if not self._platform.counts_memory:
            return on_host(self._platform, self._resolved, groups, self._kv_dtype.itemsize)
        key = remembered.key_of(__version__, torch.__version__, self._platform.identity(), self._arch, self._resolved)
        need = remembered.recall(key)
        measured = need is None
        if need is None:
            need = self._measure(groups)
            remembered.remember(key, need)
        return on_device(self._platform, self._config.cache, need, libraries_loaded=measured)

    def _measure(self, groups: tuple[KVGroup, ...]) -> Need:
        probe = KVLayout(groups, self._resolved.block_size, _PROBE_BLOCKS, self._kv_dtype.itemsize)
        plan = largest_plan(
            probe,
            self._resolved.max_num_seqs,
            self._resolved.max_num_batched_tokens,
            self._resolved.max_model_len,
        )
        with _fitting("the largest step", "lower max_num_batched_tokens, max_num_seqs or max_model_len"):
            return measure(self._platform, lambda: _run(self._build(probe), plan))

    def start(self, layout: KVLayout) -> None:
        """Allocate the KV cache and the request table, and run a first step on scratch rows."""
        length = min(_WARM_TOKENS, self._resolved.max_model_len - 1, self._resolved.max_num_batched_tokens)
        plan = small_plan(layout, max(1, length))
        with _fitting("the KV cache", "lower gpu_memory_utilization or kv_cache_memory_bytes"):
            runner = self._build(layout)
            _run(runner, plan, next_plan(plan), drop_plan(plan))
        self._runner = runner
        log.debug("operations: %s", self._ops.names)

    def forward(self, plan: StepPlan) -> None:
        """Enqueue the model's part of a step."""
        self._started().forward(plan)

    def sample(self, riders: dict[str, Any]) -> StepPending | FailedPending:
        """Enqueue the sampling of the step last given to `forward`."""
        return self._started().sample(riders)

    def prepare(self) -> bool:
        """Use a quiet moment to make later steps cheaper; True while there is more to do."""
        return self._started().prepare()

    def shutdown(self) -> None:
        """Let go of everything on the device. May be called twice."""
        self._runner = None
        self._model = None
        self._platform.release()

    def _build(self, layout: KVLayout) -> Runner:
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
            kv_dtype=self._kv_dtype,
        )

    def _started(self) -> Runner:
        if self._runner is None:
            raise EngineError("the worker is not started")
        return self._runner


@contextmanager
def _fitting(what: str, remedy: str) -> Iterator[None]:
    """Turn a lack of memory at start-up into one line that says what to do."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or isinstance(error.__cause__ or error, torch.OutOfMemoryError):
            raise ConfigError(f"{what} does not fit this device's memory; {remedy}") from error
        raise


def _run(runner: Runner, *plans: StepPlan) -> None:
    """Plans in order, each waited for. Raises EngineError."""
    for plan in plans:
        runner.forward(plan)
        runner.sample({}).result()
