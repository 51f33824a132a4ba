"""What the sampling rules share: the step as the sampler sees it, and the shape of a rule."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from octavo.base.plan import AddedRow
from octavo.worker.columns import Columns
from octavo.worker.staging import Ints, Longs

TOKEN_STREAM = 0
"""The stream of random numbers that tokens are drawn from. A row's number depends on its seed and on the position where
the token will stand, so neighbours, preemption and planning ahead do not change it."""


@dataclass(slots=True)
class SampleStep:
    """The S rows that are sampled this step. Device tensors are ``[S]`` int64."""

    rows: Tensor  # rows of the table
    positions: Tensor  # where the drawn token will stand
    columns: Columns  # the rows' sampling numbers
    tokens: Tensor  # [max_rows + 1, width] int32, the table's token lines
    num_tokens: Longs  # [S] on the host: the same as positions
    host_rows: Longs  # [S] on the host: the same as rows


class LogitRule(Protocol):
    """One change to the logits. It costs nothing in a step where no sampled row asked for it.

    A rule keeps on the host what each row asked for; a row is overwritten by `add` and so needs no removal,
    except to free memory.
    """

    hides: bool
    """Whether it may hide from the draw that a logit is no number or infinite, by forbidding its token."""

    def add(self, added: AddedRow) -> None:
        """Note what the request in this row asks for; forget what the row asked for before."""
        ...

    def drop(self, row: int) -> None:
        """The row has ended; free what it held on the device."""
        ...

    def stage(self, rows: Longs, num_tokens: Longs) -> list[Ints] | None:
        """Numbers that `apply` wants on the device this step; None: no row needs the rule.

        rows ``[S]`` of the table; num_tokens ``[S]`` tokens known before the draw.
        """
        ...

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:
        """Change logits ``[S, V]`` fp32 in place. `staged` holds what `stage` returned, as int32 on the device."""
        ...


class RiderRule(Protocol):
    """A change to the logits that the engine sends with the step, since it was known too late for the plan."""

    def apply(self, logits: Tensor, payload: Any) -> None:
        """Change logits ``[S, V]`` fp32 in place by what the rider of this rule's name holds.

        What is no number, or infinite, must stay: the draw looks for it.
        """
        ...

    def lay(self, payload: Any) -> None:
        """The same in two parts, first: send what the rider holds to where `work` reads it."""
        ...

    def work(self, logits: Tensor) -> None:
        """Second, and what is captured: change logits by what was laid last, nothing of which is of other rows."""
        ...


class Asked:
    """A host mirror: one flag a row, and which of the sampled rows have it."""

    def __init__(self, max_rows: int) -> None:
        self._flags = np.zeros(max_rows + 1, dtype=np.bool_)

    def set(self, row: int, asked: bool) -> None:
        self._flags[row] = asked

    def index(self, rows: Longs) -> list[Ints] | None:
        """Indexes into `rows` of those that asked; an empty array stands for all of them; None: nobody."""
        flags = self._flags[rows]
        if not flags.any():
            return None
        return [np.zeros(0, dtype=np.int32) if flags.all() else np.flatnonzero(flags).astype(np.int32)]


def chosen(index: Tensor) -> Tensor | None:
    """The staged form of `Asked.index` as an int64 index; None: all rows."""
    return index.long() if index.numel() else None


SLAB = 1 << 23  # numbers of logits that a rule works on at once: it bounds the memory of what it makes of them


def slabs(rows: int, width: int, most: int | None = None) -> Iterator[slice]:
    """Spans of `rows` rows of `width` numbers, as many in each as `most` numbers allow (`SLAB`), one at least.

    Fours of rows where four fit: each slab then begins on 16 bytes, as the first does. For others Triton would compile
    its kernels a second time.
    """
    size = max(1, (most or SLAB) // max(1, width))
    size -= size % 4 if size > 4 else 0
    return (slice(start, start + size) for start in range(0, rows, size))


def take(logits: Tensor, index: Tensor | None) -> Tensor:
    """The rows at `index`, as a copy; None: the tensor itself."""
    return logits if index is None else logits.index_select(0, index)


def give(logits: Tensor, index: Tensor | None, rows: Tensor) -> None:
    """Put rows from `take` back."""
    if index is not None:
        logits.index_copy_(0, index, rows)
