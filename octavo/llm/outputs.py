"""What the offline API gives back, in vLLM's shapes."""

from dataclasses import dataclass, field
from typing import Any, cast

from octavo.text.collect import Collector
from octavo.text.told import Position, WhenRead


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model calls. `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass
class CompletionOutput:
    """One continuation of a prompt. `stop_reason` is the stop string or token id that ended it, if one did; `error`
    says what went wrong where `finish_reason` is "error". The list `logprobs` is made when it is first read.

    Of a chat with tools, `text` is what is said to the user; the calls and the thoughts stand beside it.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[Position] | None = cast(Any, WhenRead())  # noqa: RUF009 - a descriptor, whose default is None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    reasoning: str | None = None
    error: str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "logprobs": self.logprobs}  # without the tokenizer behind what nobody has read


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its `n` continuations."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[Position | None] | None
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0


def completion(collector: Collector) -> CompletionOutput:
    chosen = collector.logprobs.chosen()
    speaker = collector.speaker
    return CompletionOutput(
        index=collector.index,
        text=collector.text,
        token_ids=collector.tokens,
        cumulative_logprob=sum(chosen) if chosen else None,
        logprobs=cast(Any, collector.logprobs) if chosen else None,
        finish_reason=collector.finish_reason,
        stop_reason=collector.stop_reason,
        tool_calls=[ToolCall(call.id, call.name, call.arguments) for call in speaker.calls] if speaker else [],
        reasoning=(speaker.reasoning or None) if speaker else None,
        error=collector.error,
    )
