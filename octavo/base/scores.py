"""Log-probabilities as they travel: a line of 32-bit numbers for each position, so that nothing of them is an object
before somebody reads it.

A line of k likeliest tokens: k; the chosen token's rank; its id; their ids, best first; its log-probability; theirs.
Log-probabilities are floats, all else whole numbers, in the machine's own order of bytes. Lines of one request are as
long as each other and stand one behind the other. Rank 0 marks a position of which nothing is known: a prompt's first.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import cast

from msgspec import Struct

HEAD = 4  # numbers of a line without any likeliest
BYTES = 4  # of a number


class TokenLogprobs(Struct, frozen=True):
    """One line, read. `ids` and `logprobs` hold the likeliest, best first."""

    token: int
    logprob: float
    rank: int  # 1 is the likeliest
    ids: list[int] = []
    logprobs: list[float] = []


def blank(top: int) -> bytes:
    """The line of a position of which nothing is known."""
    return array("i", [top] + [0] * (HEAD - 1 + 2 * top)).tobytes()


def top_of(lines: bytes | bytearray) -> int:
    """How many likeliest each of these lines has, of which there must be one."""
    return int.from_bytes(lines[:BYTES], sys.byteorder)


def line_bytes(lines: bytes | bytearray) -> int:
    """Bytes of each of them."""
    return BYTES * (HEAD + 2 * top_of(lines))


def count(lines: bytes | bytearray) -> int:
    """How many they are."""
    return len(lines) // line_bytes(lines) if lines else 0


def cut(lines: bytes, start: int, stop: int | None = None) -> bytes:
    """Those from `start` on, before `stop`."""
    size = line_bytes(lines) if lines else 0
    return lines[start * size : None if stop is None else stop * size]


def write(positions: Sequence[TokenLogprobs | None]) -> bytes:
    """Lines of positions that have as many likeliest each; None: nothing is known."""
    top = max([len(each.ids) for each in positions if each is not None], default=0)
    return b"".join([blank(top) if each is None else _line(each) for each in positions])


def read(lines: bytes | bytearray) -> list[TokenLogprobs | None]:
    """What they say; None where nothing is known."""
    return [
        TokenLogprobs(ids[0], values[0], rank, ids[1:], values[1:]) if rank else None
        for rank, ids, values in columns(lines)
    ]


def chosen(lines: bytes | bytearray) -> list[float]:
    """Log-probabilities of the chosen tokens."""
    if not lines:
        return []
    top, size = top_of(lines), line_bytes(lines) // BYTES
    return cast(list[float], memoryview(lines).cast("f")[HEAD - 1 + top :: size].tolist())


def columns(lines: bytes | bytearray) -> list[tuple[int, list[int], list[float]]]:
    """For each line the chosen token's rank, and ids and log-probabilities of the chosen token and the likeliest."""
    if not lines:
        return []
    view = memoryview(lines)
    whole = view.cast("i").tolist()
    real = cast(list[float], view.cast("f").tolist())
    middle = HEAD - 1 + whole[0]
    size = middle + 1 + whole[0]
    return [
        (whole[at + 1], whole[at + 2 : at + middle], real[at + middle : at + size]) for at in range(0, len(whole), size)
    ]


def _line(position: TokenLogprobs) -> bytes:
    whole = array("i", [len(position.ids), position.rank, position.token, *position.ids])
    return whole.tobytes() + array("f", [position.logprob, *position.logprobs]).tobytes()
