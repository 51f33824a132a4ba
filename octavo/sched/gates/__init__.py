"""Gates, one reason to wait a file, and the list of those every engine has."""

from collections.abc import Callable

from octavo.sched.gates.base import HOLD, Gate
from octavo.sched.gates.ceiling import CeilingGate
from octavo.sched.gates.crowd import CrowdGate
from octavo.sched.gates.long_prefill import LongPrefillGate
from octavo.sched.gates.paused import PausedGate
from octavo.sched.gates.probation import ProbationGate
from octavo.sched.gates.rows import RowGate, RowPool
from octavo.sched.gates.tokens import TokenGate
from octavo.sched.limits import Limits

MakeGates = Callable[[Limits, RowPool], list[Gate]]
"""What gives a scheduler its gates, from its limits and its rows."""

__all__ = [
    "HOLD",
    "CeilingGate",
    "CrowdGate",
    "Gate",
    "LongPrefillGate",
    "MakeGates",
    "PausedGate",
    "ProbationGate",
    "RowGate",
    "RowPool",
    "TokenGate",
    "standard_gates",
]


def standard_gates(limits: Limits, rows: RowPool) -> list[Gate]:
    """In the order in which they are asked; each sees what the ones before left."""
    return [
        RowGate(rows),
        LongPrefillGate(limits.slicing),
        CrowdGate(limits.slicing.together),
        TokenGate(limits.max_num_batched_tokens),
    ]
