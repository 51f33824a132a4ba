"""The composition root of the engine: from a configuration to a core that takes requests."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from octavo.base.config import EngineConfig, Resolved
from octavo.base.errors import ConfigError
from octavo.base.human import format_bytes
from octavo.base.specs import KVSpec
from octavo.base.wire import Ready
from octavo.engine import fit, sizing
from octavo.engine.constrained import ConstrainedSeat
from octavo.engine.core import Core
from octavo.engine.exec.base import Executor
from octavo.engine.exec.registry import EXECUTORS
from octavo.engine.guard import make_guard
from octavo.engine.recovery import Recovery
from octavo.engine.resolve import resolve
from octavo.engine.rest import Rest
from octavo.engine.slices import slices
from octavo.grammar.crew import crew_size
from octavo.models.arch import Architecture
from octavo.platform.limits import core_limit
from octavo.sched.gates import MakeGates
from octavo.sched.limits import Limits
from octavo.sched.scheduler import Scheduler
from octavo.weights.facts import ModelFiles, read_model

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Engine:
    """A core that is ready, what start-up settled, and the model's files for those who read text."""

    core: Core
    ready: Ready
    resolved: Resolved
    files: ModelFiles | None = None


@dataclass(slots=True)
class Phases:
    """Seconds that each phase of a start took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - begin, 3)
        log.info("%s took %.2f s", name, self.seconds[name])


@contextmanager
def fitting(what: str) -> Iterator[None]:
    """Out of memory, from whatever allocator, as one line that says what did not fit."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            raise ConfigError(f"{what} does not fit in the memory that is free") from error
        raise


def assemble(config: EngineConfig, *, executor: str = "inline") -> Engine:
    """Read the model, settle what is open, load the weights, cut the KV cache.

    `executor` is a name of engine/exec/registry.py. Raises ConfigError and ModelFileError.
    """
    from octavo.platform.registry import select

    make = EXECUTORS.get(executor)
    phases = Phases()
    with phases.timed("read_model"):
        files = read_model(config.model)
    with phases.timed("resolve"):
        facts = select(config.device.device).facts()
        resolved = resolve(config, files.arch, facts, file_format=files.format)
    with phases.timed("load_weights"), fitting(f"the model, {format_bytes(files.weight_bytes)} of files,"):
        runner: Executor = make(files, resolved, config)
    try:
        return finish(config, resolved, files.arch.kv_specs(), files.arch.vocab_size, runner, phases, files)
    except BaseException:
        runner.shutdown()
        raise


def finish(
    config: EngineConfig,
    resolved: Resolved,
    specs: list[KVSpec],
    vocab_size: int,
    executor: Executor,
    phases: Phases,
    files: ModelFiles | None = None,
) -> Engine:
    """The half of a start that comes after the weights: size the KV cache, start the worker, make the core."""
    with phases.timed("kv_cache"):
        fitted = fit.start(config, resolved, specs, executor)
        sized = fitted.sized
        for note in sized.notes:
            log.warning(note)
        notes = [*fitted.resolved.notes, *sized.notes]
        resolved = replace(fitted.resolved, max_model_len=sized.max_model_len, notes=notes)
    with phases.timed("scheduler"):
        recovery = Recovery()
        rest = Rest(executor, wake_on_request=config.scheduler.wake_on_request)
        gates = rest.before(recovery.gates)
        scheduler = _scheduler(config, resolved, sized, files.arch if files else None, gates)
    kv_notes = _kv_notes(config, resolved, sized)
    for note in kv_notes:
        log.info(note)
    # On a CPU all cores compute, and a step takes far longer than its masks.
    followers = 0 if resolved.device == "cpu" else crew_size(core_limit())
    seat = ConstrainedSeat(vocab_size, resolved.max_model_len, config.scheduler.max_waiting, executor, followers)
    guard = rest.guarded(make_guard(vocab_size))
    core = Core(scheduler, executor, resolved.depth, guard, seat=seat, recovery=recovery, rest=rest)
    ready = Ready(
        max_model_len=resolved.max_model_len,
        vocab_size=vocab_size,
        num_blocks=sized.layout.num_blocks,
        block_size=resolved.block_size,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        notes=[*resolved.notes, *kv_notes],
        phases=phases.seconds,
        device=resolved.device,
    )
    return Engine(core, ready, resolved, files)


def _scheduler(
    config: EngineConfig, resolved: Resolved, sized: sizing.Sizing, arch: Architecture | None, gates: MakeGates
) -> Scheduler:
    limits = Limits(
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        max_waiting=config.scheduler.max_waiting,
        max_waiting_tokens=config.scheduler.max_waiting_tokens,
        slicing=slices(config, arch, resolved.device),
        scheduling_policy=config.scheduler.scheduling_policy,
        prefix_caching=config.cache.enable_prefix_caching,
    )
    if arch is None or arch.rope_switch is None:
        return Scheduler(sized.layout, limits, gates)
    return Scheduler(sized.layout, limits, gates, lambda wire: f"{arch.rope_salt(len(wire.tokens))}|{wire.cache_salt}")


def _kv_notes(config: EngineConfig, resolved: Resolved, sized: sizing.Sizing) -> list[str]:
    length = sized.max_model_len
    notes = [
        f"KV cache of {format_bytes(sized.total_bytes)}: {sized.tokens():,} tokens in {sized.usable_blocks:,} blocks, "
        f"{sized.concurrency(length):.1f} requests of {length:,} tokens at once"
    ]
    if resolved.device == "cpu" and sizing.asked_bytes(config.cache, "cpu", 1) is None:
        notes.append(
            "on a CPU the KV cache takes a quarter of what is free, at most 4 GiB; --cpu-kvcache-space 8 takes 8 GiB"
        )
    return notes
