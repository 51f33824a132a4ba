"""After a failed step: try again, in parts, until it works or the request at fault is found.

The first time all requests of the step are tried again, half of them at a time; those that get past the place of
the failure are free. If a group fails again it is halved, and one that fails alone twice is the one. A lack of memory
makes steps smaller for a while instead. A device that is gone, and steps that fail whoever is in them, end the engine:
its process is started anew and all requests go on there (engine/supervisor.py).
"""

from octavo.base.errors import EngineDead
from octavo.engine.failures import Failure
from octavo.sched.gates import CeilingGate, Gate, ProbationGate, RowPool, standard_gates
from octavo.sched.limits import Limits

FAILURE_LIMIT = 16
"""Failed steps in a row after which the device is given up: more than it takes to halve the largest batch."""

LEAST_TOKENS = 16
"""A request that does not fit in a step of so many tokens, alone and twice in a row, does not fit."""

CALM_STEPS = 64
"""Good steps after which steps may be twice as large again."""

STEP_FAILED = "the engine could not compute this request"
NO_MEMORY = "the device has not enough memory for this request"


class Recovery:
    """Decides; the core does. `gates` goes to the scheduler."""

    def __init__(self) -> None:
        self._probation = ProbationGate()
        self._ceiling: CeilingGate | None = None
        self._in_a_row = 0
        self._condemned_in_a_row = 0
        self._calm = 0
        self._alone = ""  # the request that failed alone last
        self._tight = ""  # the request that found no memory in the least step last

    def gates(self, limits: Limits, rows: RowPool) -> list[Gate]:
        """The gates that every engine has, after our own."""
        self._ceiling = CeilingGate(rows)
        return [self._probation, self._ceiling, *standard_gates(limits, rows)]

    @property
    def alert(self) -> bool:
        """Whether `went_well` wants to hear of a step."""
        return bool(self._in_a_row or self._probation.suspects or self._bounded)

    def went_well(self, reached: dict[str, int]) -> None:
        """A step with these requests, computed so far, gave its result."""
        self._in_a_row = self._condemned_in_a_row = 0
        self._tight = ""
        self._probation.clear(reached)
        if self._bounded:
            self._calm += 1
            if self._calm >= CALM_STEPS:
                self._widen()

    def failed(self, kind: Failure, reached: dict[str, int], num_tokens: int, cause: str) -> dict[str, str]:
        """A step of `num_tokens` with these requests failed. Those to end, with what to tell them; the rest may try
        again. Raises EngineDead when to go on here is of no use."""
        self._in_a_row += 1
        if kind is Failure.DEVICE:
            raise EngineDead(f"the device failed: {cause}")
        if self._in_a_row >= FAILURE_LIMIT:
            raise EngineDead(f"{FAILURE_LIMIT} steps in a row failed; the last one: {cause}")
        if kind is Failure.MEMORY:
            return self._shrink(reached, num_tokens)
        return self._suspect(reached, cause)

    def ended(self, id: str) -> None:
        """A request has had its last output."""
        self._probation.acquit(id)

    @property
    def _bounded(self) -> bool:
        return self._ceiling is not None and self._ceiling.rows is not None

    def _suspect(self, reached: dict[str, int], cause: str) -> dict[str, str]:
        before = self._probation.suspects
        again = {id: max(tokens, before[id]) for id, tokens in reached.items() if id in before}
        if not again:
            self._alone = next(iter(reached)) if len(reached) == 1 else ""
            self._probation.suspect(reached, max(1, len(reached) // 2))
            return {}
        if len(again) > 1:
            self._probation.suspect(again, len(again) // 2)
            return {}
        (id,) = again
        if self._alone != id:  # two failures in a row are not its fault for sure
            self._alone = id
            self._probation.suspect({**before, **again}, self._probation.group)
            return {}
        if self._condemned_in_a_row:
            raise EngineDead(f"steps fail whoever is in them; the last one: {cause}")
        self._condemned_in_a_row += 1
        others = {id: tokens for id, tokens in before.items() if id not in again}
        self._probation.suspect(others, self._probation.group)
        return dict.fromkeys(again, STEP_FAILED)

    def _shrink(self, reached: dict[str, int], num_tokens: int) -> dict[str, str]:
        ceiling = self._ceiling
        if ceiling is None:
            return dict.fromkeys(reached, NO_MEMORY)
        if len(reached) <= 1 and num_tokens <= LEAST_TOKENS:
            id = next(iter(reached), "")
            if self._tight == id:
                return dict.fromkeys(reached, NO_MEMORY)
            self._tight = id  # what others left cached was let go of meanwhile: once more
        ceiling.rows = max(1, len(reached) // 2)
        ceiling.tokens = max(ceiling.rows, LEAST_TOKENS, num_tokens // 2)
        self._calm = 0
        return {}

    def _widen(self) -> None:
        ceiling = self._ceiling
        assert ceiling is not None
        self._calm = 0
        rows = 2 * (ceiling.rows or 1)
        ceiling.rows = None if rows >= ceiling.num_rows else rows
        ceiling.tokens = None if ceiling.rows is None or ceiling.tokens is None else 2 * ceiling.tokens
