"""Log-probabilities as the offline API gives them: one dictionary a position, made when somebody looks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.text.logprobs import PositionLogprobs, Positions


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of one token at one position; `rank` 1 is the likeliest."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


Position = dict[int, Logprob]
"""Token id to its log-probability: the chosen token and the likeliest ones."""


class WhenRead:
    """A dataclass's field that may be given `Positions`: the first look makes the list of them, and keeps it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> list[Position] | None:
        if instance is None:
            return None  # the field's default
        held = instance.__dict__[self._name]
        if isinstance(held, Positions):
            held = instance.__dict__[self._name] = told(held)
        found: list[Position] | None = held
        return found

    def __set__(self, instance: Any, value: "Positions | list[Position] | None") -> None:
        instance.__dict__[self._name] = value


def told(positions: Positions) -> list[Position]:
    """The dictionaries, the chosen token first in each."""
    text_of = _Texts(positions).__getitem__
    found = []
    for rank, ids, values in positions.columns():
        ranks = (rank, *range(1, len(ids)))
        found.append(dict(zip(ids, map(Logprob, values, ranks, map(text_of, ids)))))
    return found


def told_of_prompt(entries: Sequence[PositionLogprobs | None]) -> list[Position | None]:
    """The same for a prompt; None where nothing is known."""
    return [
        None
        if entry is None
        else {one.id: Logprob(one.logprob, one.rank, one.token) for one in (entry.chosen, *entry.top)}
        for entry in entries
    ]


class _Texts(dict[int, str]):
    """Token id to its text; a text that is asked for again is the same object."""

    def __init__(self, positions: Positions) -> None:
        super().__init__()
        self._bytes_of = positions.tokenizer.token_bytes

    def __missing__(self, token: int) -> str:
        text = self[token] = self._bytes_of(token).decode("utf-8", "replace")
        return text
