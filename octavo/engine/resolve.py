"""From what was asked, what the model is and what the machine is to what will be done: an ordered list of rules.

Each rule is pure, settles one field of `Resolved`, and gives its reason when the answer is not plainly what was
asked. A rule may read what the rules before it settled.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.base.config import EngineConfig, Resolved
from octavo.base.errors import ConfigError
from octavo.models.arch import Architecture
from octavo.platform.base import Facts

log = logging.getLogger(__name__)

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """All that a rule may look at."""

    config: EngineConfig
    arch: Architecture
    facts: Facts
    file_format: str
    settled: dict[str, Any] = field(default_factory=dict)

    @property
    def on_cpu(self) -> bool:
        return bool(self.settled["device"] == "cpu")


Answer = tuple[Any, str]
"""The value, and why; an empty reason is not noted."""


def device(case: Case) -> Answer:
    asked, facts = case.config.device.device, case.facts
    if case.config.device.tensor_parallel_size > 1:
        raise ConfigError("tensor_parallel_size above 1 comes with a later version; this one runs on one device")
    if asked not in ("auto", facts.device):
        raise ConfigError(f"device {asked} was asked for, but this machine offers {facts.device}")
    return facts.device, facts.name if asked == "auto" else ""


def dtype(case: Case) -> Answer:
    asked, able = case.config.model.dtype, case.facts.dtypes
    if asked != "auto":
        if asked not in able:
            raise ConfigError(f"{case.facts.name} cannot compute in {asked}; it can in {', '.join(able)}")
        return asked, ""
    if case.on_cpu:
        return "float32", "exact, and fast on a CPU"
    if case.arch.dtype not in able:
        return able[0], f"{case.facts.name} cannot compute in the checkpoint's {case.arch.dtype}"
    return case.arch.dtype, "the checkpoint's"


def load_format(case: Case) -> Answer:
    asked = case.config.model.load_format
    return (case.file_format, "") if asked == "auto" else (asked, "")


def max_model_len(case: Case) -> Answer:
    limit, asked = case.arch.max_position, case.config.model.max_model_len
    if asked is None:
        return limit, "the model's own"
    if asked > limit:
        raise ConfigError(f"max_model_len {asked} is over the model's context of {limit} tokens")
    return asked, ""


def max_num_seqs(case: Case) -> Answer:
    asked = case.config.scheduler.max_num_seqs
    if asked is not None:
        return asked, ""
    if case.on_cpu:
        return 64, "a CPU gains little from more rows"
    if case.facts.total_memory >= 70 * GIB:
        return 1024, "a large GPU"
    return 256, "a GPU below 70 GiB"


def max_num_batched_tokens(case: Case) -> Answer:
    asked = case.config.scheduler.max_num_batched_tokens
    seqs = case.settled["max_num_seqs"]
    if asked is not None:
        if asked < seqs and case.config.scheduler.max_num_seqs is not None:
            raise ConfigError(
                f"max_num_batched_tokens {asked} is below max_num_seqs {seqs}; each request needs a token a step"
            )
        return asked, ""
    if case.on_cpu:
        return max(2048, seqs), "keeps a step on a CPU short"
    if case.facts.total_memory >= 70 * GIB:
        return max(16_384, seqs), "a large GPU"
    return max(8192, seqs), "a GPU below 70 GiB"


def fewer_seqs(case: Case) -> Answer:
    """A row that gets no token in a step only waits, so unasked rows beyond the token budget go."""
    seqs, tokens = case.settled["max_num_seqs"], case.settled["max_num_batched_tokens"]
    if seqs <= tokens:
        return seqs, ""
    return tokens, f"max_num_batched_tokens is {tokens}"


def depth(case: Case) -> Answer:
    asked = case.config.scheduler.async_scheduling
    if asked is not None:
        return (2 if asked else 1), ""
    if case.facts.asynchronous:
        return 2, "the next step is planned while the device runs"
    return 1, "planning and computing share the cores"


def threads(case: Case) -> Answer:
    asked = case.config.device.threads
    if asked is not None:
        return asked, ""
    if case.on_cpu:
        return case.facts.cores, "the cores this process may use"
    return min(8, case.facts.cores), "a GPU's host has little to compute"


def block_size(case: Case) -> Answer:
    return case.config.cache.block_size, ""


RULES: tuple[tuple[str, Callable[[Case], Answer]], ...] = (
    ("device", device),
    ("dtype", dtype),
    ("load_format", load_format),
    ("max_model_len", max_model_len),
    ("max_num_seqs", max_num_seqs),
    ("max_num_batched_tokens", max_num_batched_tokens),
    ("max_num_seqs", fewer_seqs),
    ("depth", depth),
    ("threads", threads),
    ("block_size", block_size),
)
"""The field each rule settles, and the rule. The order is meaning."""


def resolve(config: EngineConfig, arch: Architecture, facts: Facts, *, file_format: str = "safetensors") -> Resolved:
    """Apply the rules. `file_format` is what the model's files are. Raises ConfigError."""
    case = Case(config, arch, facts, file_format)
    reasons: dict[str, str] = {}
    for name, rule in RULES:
        value, why = rule(case)
        case.settled[name] = value
        if why:
            reasons[name] = why
    notes = [f"{name} {case.settled[name]}: {why}" for name, why in reasons.items()]
    for note in notes:
        log.info(note)
    return Resolved(**case.settled, notes=notes)
