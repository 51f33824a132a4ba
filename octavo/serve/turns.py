"""Chat's chunks read back as the steps of one turn: what it thought, said and called, and how it ended.

Other dialects are written from these steps, so they need to know nothing of models, templates or parsers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct


class ChunkFunction(Struct):
    """Part of a called function."""

    name: str | None = None
    arguments: str | None = None


class ChunkCall(Struct):
    """Part of a call; `index` counts the calls of a turn."""

    index: int = 0
    id: str | None = None
    function: ChunkFunction = msgspec.field(default_factory=ChunkFunction)


class ChunkDelta(Struct):
    """What a chunk adds. Reasoning comes under two names; either will do."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChunkCall] | None = None


class ChunkLogprobs(Struct):
    """Log-probabilities of the chunk's tokens."""

    content: list[dict[str, Any]] | None = None


class ChunkChoice(Struct):
    """The one choice of a chunk."""

    delta: ChunkDelta = msgspec.field(default_factory=ChunkDelta)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: ChunkLogprobs | None = None


class Details(Struct):
    """Parts of a count."""

    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Usage(Struct):
    """Token counts so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None

    @property
    def cached(self) -> int:
        """Prompt tokens found in the prefix cache."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0

    @property
    def reasoning(self) -> int:
        """Tokens that the model thought."""
        return self.completion_tokens_details.reasoning_tokens if self.completion_tokens_details else 0


class Chunk(Struct):
    """One chunk of a chat stream."""

    choices: list[ChunkChoice] = []
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """Text goes on."""

    text: str
    logprobs: list[dict[str, Any]]


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

_decode = msgspec.json.Decoder(Chunk).decode


class TurnReader:
    """Reads the chunks of one stream of one choice."""

    def __init__(self) -> None:
        self.usage = Usage()
        self._calls = 0

    def feed(self, payload: bytes) -> Iterator[Step]:
        """The steps of one chunk."""
        chunk = _decode(payload)
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            delta = choice.delta
            thought = delta.reasoning or delta.reasoning_content
            if thought:
                yield Thought(thought)
            if delta.content or choice.logprobs:
                yield Said(delta.content or "", (choice.logprobs and choice.logprobs.content) or [])
            for call in delta.tool_calls or ():
                yield from self._call(call)
            if choice.finish_reason is not None:
                yield Ended(choice.finish_reason, choice.stop_reason)

    def _call(self, call: ChunkCall) -> Iterator[Step]:
        if call.index >= self._calls:
            self._calls = call.index + 1
            yield CallBegun(call.id or "", call.function.name or "")
        if call.function.arguments:
            yield CallArguments(call.function.arguments)
