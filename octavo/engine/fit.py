"""Fitting a start to the memory there is: smaller steps before a short context, a short context before none.

Only what nobody asked for is made smaller. What was fitted is told in one line; what is impossible is one line too.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from octavo.base.config import EngineConfig, Resolved
from octavo.base.errors import NoRoom
from octavo.base.human import format_bytes
from octavo.base.specs import KVSpec
from octavo.engine import sizing
from octavo.engine.exec.base import Executor
from octavo.platform.limits import memory_limits

log = logging.getLogger(__name__)

USEFUL_TOKENS = 8192  # a context shorter than this, and than the model's own, is worth smaller steps
LEAST_TOKENS = 256  # of a step
LEAST_SEQS = 16
TRIES = 3  # somebody else may take memory between measuring and allocating


@dataclass(frozen=True, slots=True)
class Fitted:
    """Settings and KV cache that go together."""

    resolved: Resolved
    sized: sizing.Sizing

    @property
    def comfortable(self) -> bool:
        """Whether the context is as long as anybody may want, or as the model has it."""
        return self.sized.max_model_len >= min(self.resolved.max_model_len, USEFUL_TOKENS)


def choose(config: EngineConfig, resolved: Resolved, size: Callable[[Resolved], sizing.Sizing]) -> Fitted:
    """The largest steps that leave room for a useful context, or else the longest context there can be.

    `size` cuts the KV cache that given settings leave room for. Raises its NoRoom where nothing fits.
    """
    best: Fitted | None = None
    trouble: NoRoom | None = None
    attempt: Resolved | None = resolved
    while attempt is not None:
        try:
            found = Fitted(attempt, size(attempt))
        except NoRoom as error:
            trouble = error
        else:
            if best is None or found.sized.max_model_len > best.sized.max_model_len:
                best = found
            if found.comfortable:
                break
        attempt = smaller(config, attempt)
    if best is None:
        assert trouble is not None
        raise trouble
    return Fitted(_noted(resolved, best.resolved), best.sized)


def fit(
    config: EngineConfig, resolved: Resolved, specs: list[KVSpec], executor: Executor, *, heed: bool = True
) -> Fitted:
    """Choose by what the executor measures. `heed`: take the KV cache that was asked for, else what memory allows.

    Raises NoRoom.
    """

    def size(attempt: Resolved) -> sizing.Sizing:
        executor.adopt(attempt)
        return _size(config, attempt, specs, executor.kv_capacity(), executor.kv_dtype(), heed)

    return choose(config, resolved, size)


def start(config: EngineConfig, resolved: Resolved, specs: list[KVSpec], executor: Executor) -> Fitted:
    """Fit, and start the executor; again when memory was taken meanwhile. Raises NoRoom."""
    notes: list[str] = []
    for left in reversed(range(TRIES)):
        fitted = fit(config, resolved, specs, executor, heed=not notes)
        wanted = format_bytes(fitted.sized.total_bytes)
        executor.adopt(msgspec.structs.replace(fitted.resolved, max_model_len=fitted.sized.max_model_len))
        try:
            executor.start(fitted.sized.layout)
        except (NoRoom, MemoryError) as error:
            if not left:
                remedy = "lower --gpu-memory-utilization or --kv-cache-memory-bytes"
                raise NoRoom(f"a KV cache of {wanted} does not fit in the memory that is free; {remedy}") from error
            notes = [f"KV cache fitted to what is free: {wanted} were not to be had"]
            log.warning(notes[0])
            continue
        for note in fitted.resolved.notes[len(resolved.notes) :]:
            log.warning(note)
        sized = msgspec.structs.replace(fitted.sized, notes=[*notes, *fitted.sized.notes])
        return Fitted(fitted.resolved, sized)
    raise AssertionError("the last try returns or raises")


def smaller(config: EngineConfig, resolved: Resolved) -> Resolved | None:
    """Steps of half the size; None when they are as small as they get, or cost nothing beforehand (a CPU's)."""
    if resolved.device == "cpu":
        return None
    asked = config.scheduler
    tokens, seqs = resolved.max_num_batched_tokens, resolved.max_num_seqs
    if asked.max_num_batched_tokens is None:
        tokens = max(tokens // 2, min(tokens, LEAST_TOKENS))
    if asked.max_num_seqs is None:
        seqs = max(seqs // 2, min(seqs, LEAST_SEQS))
    if (tokens, seqs) == (resolved.max_num_batched_tokens, resolved.max_num_seqs):
        return None
    return msgspec.structs.replace(resolved, max_num_batched_tokens=tokens, max_num_seqs=min(seqs, tokens))


def _noted(before: Resolved, after: Resolved) -> Resolved:
    if before.max_num_batched_tokens == after.max_num_batched_tokens and before.max_num_seqs == after.max_num_seqs:
        return after
    note = (
        f"max_num_batched_tokens {after.max_num_batched_tokens} instead of {before.max_num_batched_tokens}, "
        f"max_num_seqs {after.max_num_seqs} instead of {before.max_num_seqs}: smaller steps leave room for the KV cache"
    )
    return msgspec.structs.replace(after, notes=[*after.notes, note])


def _size(
    config: EngineConfig, resolved: Resolved, specs: list[KVSpec], measured: int, dtype: str, heed: bool
) -> sizing.Sizing:
    one_block = sizing.one_block_bytes(specs, resolved.block_size, dtype)
    asked = sizing.asked_bytes(config.cache, resolved.device, one_block) if heed else None
    capacity, notes = measured if asked is None else asked, []
    if asked is not None and resolved.device == "cpu":
        # A host hands out more than it has, and ends whoever then uses it.
        free = memory_limits()[0]
        if asked > free:
            capacity = free
            notes = [f"KV cache of {format_bytes(free)}: {format_bytes(asked)} were asked for, that much is free"]
    elif asked is not None and asked > measured:
        log.warning("%s of KV cache were asked for; %s seem to be free", format_bytes(asked), format_bytes(measured))
    sized = sizing.size(
        specs,
        dtype=dtype,
        block_size=resolved.block_size,
        capacity=capacity,
        max_model_len=resolved.max_model_len,
        remedy=remedy(config, resolved),
    )
    return msgspec.structs.replace(sized, notes=[*notes, *sized.notes])


def remedy(config: EngineConfig, resolved: Resolved) -> str:
    """The flag that makes room, in words."""
    if resolved.device == "cpu":
        return "free memory, or raise --cpu-kvcache-space" if config.cache.cpu_kvcache_space else "free memory"
    steps = "" if config.scheduler.max_num_batched_tokens is None else "lower --max-num-batched-tokens, "
    return f"free memory, {steps}or raise --gpu-memory-utilization"
