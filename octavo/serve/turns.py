"""An answer of chat's told as the steps of one turn: what the model thought, said and called, and how it ended.

Other dialects are written from these steps, so they need to know nothing of models, templates or parsers.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from octavo.text.collect import Collector


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """Text goes on."""

    text: str
    logprobs: list[msgspec.Raw]  # objects of chat's


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model calls a function."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of the call begun last go on."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The turn is over: stop, length or tool_calls, and the stop string if one ended it."""

    finish_reason: str
    stop_reason: str | int | None


Step = Thought | Said | CallBegun | CallArguments | Ended

Listener = Callable[[Collector, Sequence[Step]], Awaitable[None]]
"""Told the steps of each output of the one choice, whose totals the collector keeps."""
