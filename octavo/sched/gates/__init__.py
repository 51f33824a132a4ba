"""Gates, one reason to wait a file, and the list of those every engine has."""

from octavo.sched.gates.base import Gate
from octavo.sched.gates.long_prefill import LongPrefillGate
from octavo.sched.gates.rows import RowGate, RowPool
from octavo.sched.gates.tokens import TokenGate
from octavo.sched.limits import Limits

__all__ = ["Gate", "LongPrefillGate", "RowGate", "RowPool", "TokenGate", "standard_gates"]


def standard_gates(limits: Limits, rows: RowPool) -> list[Gate]:
    """In the order in which they are asked; each sees what the ones before left."""
    return [
        RowGate(rows),
        LongPrefillGate(limits.long_prefill_token_threshold, limits.long_prefill_reach),
        TokenGate(limits.max_num_batched_tokens),
    ]
