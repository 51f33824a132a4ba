"""Rows of the worker's table: a request needs one to run."""

from octavo.sched.gates.base import Gate
from octavo.sched.request import NO_ROW, Request


class RowPool:
    """Free rows, and those the worker must be told to forget. A row may be taken again at once: a plan drops rows
    before it adds any."""

    def __init__(self, num_rows: int) -> None:
        self._free = list(range(num_rows - 1, -1, -1))
        self._dropped: list[int] = []

    @property
    def num_free(self) -> int:
        """Rows that nobody has."""
        return len(self._free)

    def take(self) -> int:
        """A free row; the caller has checked that there is one."""
        return self._free.pop()

    def release(self, row: int) -> None:
        """The row's request has left it."""
        self._free.append(row)
        self._dropped.append(row)

    def redo(self, row: int) -> None:
        """The row's request stays in it and is added anew in the next plan."""
        self._dropped.append(row)

    def take_dropped(self) -> list[int]:
        """Rows given back since the last plan."""
        dropped, self._dropped = self._dropped, []
        return dropped


class RowGate(Gate):
    """No row, no start."""

    def __init__(self, rows: RowPool) -> None:
        self._rows = rows

    def allow(self, request: Request, num_tokens: int) -> int:
        """All, if it has a row or one is free."""
        return num_tokens if request.row != NO_ROW or self._rows.num_free else 0
