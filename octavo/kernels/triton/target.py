"""The GPU that kernels are made for: the one that is here, or one that is only named."""

from dataclasses import dataclass
from functools import cache

import torch

from octavo.base.errors import EngineError


@dataclass(frozen=True, slots=True)
class Target:
    """What the shape of a kernel depends on."""

    capability: tuple[int, int]
    multiprocessors: int
    shared_memory: int  # bytes that a program may have


_INTERPRETED = Target((0, 0), 2, 232_448)  # no GPU: the interpreter, whose programs run one after another

_assumed: Target | None = None


def assume(target: Target) -> None:
    """Make kernels for this GPU in this process, whatever is here. To be called before any kernel is imported."""
    global _assumed  # noqa: PLW0603 - one a process: kernels read it as they are imported
    if target_here.cache_info().currsize:
        raise EngineError("kernels were made for another GPU already")
    _assumed = target


@cache
def target_here() -> Target:
    """The assumed GPU, or the current one."""
    if _assumed is not None:
        return _assumed
    if not torch.cuda.is_available():
        return _INTERPRETED
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Target(
        (properties.major, properties.minor),
        properties.multi_processor_count,
        int(properties.shared_memory_per_block_optin),  # type: ignore[attr-defined]
    )
