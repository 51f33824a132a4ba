"""The rules in their one order, which is vLLM's: what forbids, what moves, then what narrows."""

from collections.abc import Callable

from torch import Tensor

from octavo.kernels.ops import Ops
from octavo.worker.sample.filters import Narrow, Temperature, Typical
from octavo.worker.sample.masks import AllowedTokens, BadWords, LogitBias, MinTokens
from octavo.worker.sample.penalties import Penalties
from octavo.worker.sample.step import LogitRule
from octavo.worker.staging import Ints


def standard_rules(
    max_rows: int, vocab_size: int, upload: Callable[[list[Ints]], list[Tensor]], ops: Ops
) -> tuple[LogitRule, ...]:
    """All rules of plain generation. `upload` takes host arrays to the device."""
    return (
        AllowedTokens(vocab_size, upload, ops.forbid),
        BadWords(vocab_size),
        MinTokens(max_rows, vocab_size),
        LogitBias(vocab_size),
        Penalties(max_rows, ops.penalize),
        Temperature(max_rows),
        Narrow(max_rows, ops.narrow),
        Typical(max_rows),
    )
