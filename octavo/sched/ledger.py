"""Progress in columns: the numbers of all who run stand side by side, so that a step looks at all of them at once.

A request's numbers are in one place at a time: a line of the ledger while it runs, a list of its own before and after.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from octavo.base.lines import Lines

if TYPE_CHECKING:
    from octavo.kv.holding import Holding
    from octavo.sched.request import Request

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

KNOWN, COMPUTED, HORIZON, ATTENTION, PROMPT, LIMIT, STAY = range(7)
WIDTH = 7
ALWAYS = -(1 << 40)  # the ATTENTION of one that is looked at closely in each step
NO_TOKEN = -1  # of a row whose logits were no numbers


class Number:
    """An attribute of a request that lives in its line of numbers."""

    def __init__(self, column: int) -> None:
        self._column = column

    def __get__(self, request: "Request", owner: type | None = None) -> int:
        return int(request.numbers[self._column])

    def __set__(self, request: "Request", value: int) -> None:
        request.numbers[self._column] = value


class Ledger:
    """One line of numbers a row of the worker's table: ``columns[column][row]``, each column by itself in memory."""

    def __init__(self, rows: int) -> None:
        self._cells: Longs = np.zeros((WIDTH, rows), dtype=np.int64)
        self.columns: tuple[Longs, ...] = tuple(self._cells)
        self.lines = Lines()  # tokens of those who have a row
        self._stays = 0

    def enter(self, row: int, numbers: Sequence[int]) -> Longs:
        """The row's line, with these numbers in it. STAY becomes a number that no earlier stay in any row had."""
        self._stays += 1
        line: Longs = self._cells[:, row]
        line[:] = numbers
        line[STAY] = self._stays
        return line

    def leave(self, row: int) -> list[int]:
        """The numbers of a row that falls empty. Its tokens are written down."""
        self.lines.settle()
        numbers: list[int] = self._cells[:, row].tolist()
        self._cells[:, row] = numbers[STAY] = 0
        return numbers


class Roster:
    """Requests as columns, in order. Whoever asks may keep it: it never changes."""

    def __init__(self, requests: list["Request"], rows: Longs, stays: Longs) -> None:
        self.requests = requests
        self.rows = rows
        self.stays = stays

    @classmethod
    def of(cls, requests: Iterable["Request"], ledger: Ledger) -> "Roster":
        """Of requests that all have a row."""
        who = list(requests)
        if not who:
            return NOBODY
        rows = np.array(_each("row", who), dtype=np.int64)
        return cls(who, rows, ledger.columns[STAY].take(rows))

    def __len__(self) -> int:
        return len(self.requests)

    @cached_property
    def ids(self) -> list[str]:
        """Their names."""
        return _each("id", self.requests)

    @cached_property
    def lines(self) -> list[list[int]]:
        """Their tokens, as far as they are written down."""
        return _each("line", self.requests)

    @cached_property
    def holdings(self) -> list["Holding"]:
        """What they hold of the KV cache."""
        return _each("holding", self.requests)

    @cached_property
    def ends(self) -> frozenset[int]:
        """Every token that ends any of them, and what stands for no token."""
        return frozenset((NO_TOKEN,)).union(*set(_each("ends", self.requests)))

    @cached_property
    def decoding(self) -> tuple["array[int]", "array[int]", "array[int]"]:
        """Three columns of the plan of a step in which each of them computes one token: rows, counts, samples."""
        size = len(self)
        return array("q", self.rows.tobytes()), array("q", [1]) * size, array("q", range(size))

    def only(self, chosen: Bools) -> "Roster":
        """Those marked in `chosen`, which may be shorter."""
        size = chosen.size
        requests = list(compress(self.requests, chosen.tolist()))
        return Roster(requests, self.rows[:size][chosen], self.stays[:size][chosen])


NOWHERE: Longs = np.zeros(0, dtype=np.int64)
NOBODY = Roster([], NOWHERE, NOWHERE)


def _each(name: str, requests: list["Request"]) -> list[Any]:
    get: Callable[[Request], Any] = attrgetter(name)
    return list(map(get, requests))
