"""What passes between the engine and a process that follows some of its constraints: msgpack, a length before each.

Masks do not: they lie in memory that all have, [rows, words] int32, from a `first` row on as an order's guides stand.
"""

from msgspec import Struct

from octavo.grammar.spec import GrammarSpec


class Begin(Struct, frozen=True, tag=True, array_like=True):
    """Make a guide. The answer is Begun, when it comes: other orders are not kept waiting."""

    number: int  # of the guide
    recipe: bytes  # a Recipe; the same of many
    spec: GrammarSpec
    ends: list[int]
    limit: int
    tokens: list[int]  # that have been taken already


class Leave(Struct, frozen=True, tag=True, array_like=True):
    """Forget guides. There is no answer."""

    numbers: list[int]


class Take(Struct, frozen=True, tag=True, array_like=True):
    """Take a token each, and fill the masks behind them. The answers are Stood and Filled."""

    numbers: list[int]
    tokens: list[int]
    first: int


class Fill(Struct, frozen=True, tag=True, array_like=True):
    """Fill masks. The answer is Filled."""

    numbers: list[int]
    first: int


Order = Begin | Leave | Take | Fill


class Ready(Struct, frozen=True, tag=True, array_like=True):
    """The first frame of the process: it takes guides of these engines of grammars."""

    backends: list[str]


class Begun(Struct, frozen=True, tag=True, array_like=True):
    """Whether a guide is there."""

    number: int
    there: bool


class Stood(Struct, frozen=True, tag=True, array_like=True):
    """The tokens that stand, as ordered. `failures`: messages by the place of their guide."""

    tokens: list[int]
    failures: dict[int, str] = {}


class Filled(Struct, frozen=True, tag=True, array_like=True):
    """The masks are there. `failures` as above."""

    failures: dict[int, str] = {}


Answer = Ready | Begun | Stood | Filled
