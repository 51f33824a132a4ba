"""What a grammar engine is: from a checked form to a grammar, from a grammar to matchers, one a sequence."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from octavo.base.errors import UserError

if TYPE_CHECKING:  # the text side checks constraints too, and starts without numpy
    import numpy as np
    import numpy.typing as npt

Words: TypeAlias = "npt.NDArray[np.int32]"
"""A token mask: bit ``i % 32`` of word ``i // 32`` says whether token i may come next."""


MAX_WHITESPACE = 64
"""Most characters of whitespace between two tokens of JSON. Endless whitespace is what a small model falls into; nobody
indents further than this."""


class Refused(UserError):
    """A constraint that cannot be enforced exactly, or is none. The message names the keyword at fault."""


class Form(Struct, frozen=True, array_like=True):
    """A constraint that has been checked and brought to the few kinds that engines know.

    `text`: JSON text of a schema, of a list of choices or of a structural tag, a regular expression, or a Lark grammar.
    """

    kind: Literal["json_schema", "regex", "choice", "lark", "structural_tag"]
    text: str
    any_whitespace: bool = True
    whitespace_pattern: str | None = None
    hints: tuple[bytes, ...] = ()  # short texts that may close it: where a search for the shortest end looks first
    longest: int = 0  # bytes of the longest text that stands in it word for word
    around: str = ""  # Lark rules that it stands within, as `answer`


class Matcher(Protocol):
    """Where one sequence stands in its grammar. Not for several threads at once."""

    def fill(self, row: Words) -> bool:
        """Write the mask of the next token over `row`. False if the engine gave up: the matcher is of no more use.

        End-of-sequence bits are unspecified; `is_accepting` says whether the text may end.
        """
        ...

    def accept(self, token: int) -> bool:
        """Move on by a token. False, and no change, if it may not come next."""
        ...

    def push(self, tokens: Sequence[int]) -> bool:
        """Accept all of these tokens, one after the other; if they may not come, none of them."""
        ...

    def closes(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens would make the text whole from here. Nothing moves."""
        ...

    def reach(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may come, one after the other. Nothing moves."""
        ...

    def forced(self) -> bytes:
        """Text that has to come next, as far as there is one; some engines may know less of it."""
        ...

    def rewind(self, n: int) -> None:
        """Take back the last n accepted tokens."""
        ...

    def copy(self) -> "Matcher":
        """Another one in the same place."""
        ...

    @staticmethod
    def fill_many(matchers: Sequence[Any], masks: Words, places: Sequence[int]) -> dict[int, bool]:
        """`fill` of many of a class, each into the row of `masks` at its place.

        Gives what `fill` says for at least those places where the text may end or no token may come.
        """
        ...

    @staticmethod
    def accept_many(matchers: Sequence[Any], tokens: Sequence[int]) -> list[bool]:
        """`accept` of many of a class, each its token. One that says False is of no more use."""
        ...

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is whole."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Whether the text is whole and nothing can follow it."""
        ...


class Grammar(Protocol):
    """A compiled form. Shared by all sequences that have it."""

    def matcher(self) -> Matcher:
        """A fresh one, at the beginning."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory that it holds, about."""
        ...


class Backend(Protocol):
    """A grammar engine over one vocabulary; made by its registry entry with a `VocabularyTable`, and with `brief` where
    constraints are tried out: then it is there sooner, and may take longer over a mask."""

    def refusal(self, form: Form) -> str | None:
        """Why it cannot enforce this form exactly, as far as is seen without compiling."""
        ...

    def compile(self, form: Form) -> Grammar:
        """Raises Refused."""
        ...
