"""``/v1/chat/completions``: messages through the model's chat template."""

from collections.abc import Sequence
from typing import Any

from octavo.base.errors import UserError, bad_value
from octavo.base.params import MAX_TOKENS
from octavo.serve.calls import Call, Reply
from octavo.serve.decode import Schema
from octavo.serve.openai.answer import Answer, bounded_call, options_of
from octavo.serve.openai.extras import own_words
from octavo.serve.openai.fields import SILENT
from octavo.serve.openai.logprobs import chat_content, names_of, prompt_positions
from octavo.serve.openai.prepare import begin, chat_sequences, check_choices, check_positions, sampling
from octavo.serve.openai.schema import ChatRequest
from octavo.serve.turns import CallArguments, CallBegun, Ended, Said, Step, Thought
from octavo.text.collect import Collector, TextDelta
from octavo.text.logprobs import Positions
from octavo.text.parse.base import Event, Reasoning, Text, ToolArguments, ToolStart
from octavo.text.tokenizer import Tokenizer

_SCHEMA = Schema(ChatRequest, SILENT)


async def create(call: Call) -> Reply | None:
    """Answers the conversation `n` times."""
    ticket, body = await begin(call, _SCHEMA, "chatcmpl")
    options = options_of(body)
    _check(body)
    params = sampling(ticket.backend, body, None)
    if body.max_completion_tokens is not None:
        params = params.replace(max_tokens=body.max_completion_tokens)
    if body.logprobs:
        params = params.replace(logprobs=body.top_logprobs or 0)
    check_choices(1, params.n)
    keep = not call.service.config.serve.exclude_tools_when_tool_choice_none
    names = {"max_tokens": "max_completion_tokens"} if body.max_completion_tokens is not None else {}
    async with bounded_call(call):
        with own_words(names, {}):
            prepared = await call.service.off_loop(
                call.body_bytes, chat_sequences, ticket, body, params, keep_tools=keep
            )
    check_positions(prepared, "prompt_logprobs")
    dialect = _Chat(ticket.backend.text.tokenizer, body)
    answer = Answer(call, ticket.backend, dialect, prepared, ticket.head, options)
    if call.listener is None:
        return await answer.run()
    await answer.tell(call.listener, dialect.steps)
    return None


def _check(body: ChatRequest) -> None:
    """What the fields must be to each other."""
    if body.top_logprobs and not body.logprobs:
        raise UserError("top_logprobs needs logprobs: true.", param="top_logprobs")
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(body, name)
        if value is not None and not 1 <= value <= MAX_TOKENS:
            raise bad_value(name, f"must be between 1 and {MAX_TOKENS}")
    if body.logprob_token_ids and not body.logprobs:
        raise UserError("logprob_token_ids needs logprobs: true.", param="logprob_token_ids")


def message_of(collector: Collector, with_reasoning: bool = True) -> dict[str, Any]:
    """The assistant's message. Content is null where there are calls or thoughts and no text."""
    message: dict[str, Any] = {"role": "assistant", "content": collector.text, "refusal": None}
    speaker = collector.speaker
    if speaker is None:
        return message
    reasoning = speaker.reasoning if with_reasoning else ""
    if reasoning:
        message["reasoning"] = message["reasoning_content"] = reasoning
    if speaker.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in speaker.calls
        ]
    if not collector.text and (speaker.calls or reasoning):
        message["content"] = None
    return message


def delta_of(event: Event) -> dict[str, Any]:
    """The delta of one event; empty where there is nothing to say."""
    if isinstance(event, Text):
        return {"content": event.text}
    if isinstance(event, Reasoning):
        return {"reasoning": event.text, "reasoning_content": event.text}
    if isinstance(event, ToolStart):
        function = {"name": event.name, "arguments": ""}
        return {"tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]}
    if isinstance(event, ToolArguments):
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.delta}}]}
    return {}


class _Chat:
    """The chat dialect."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, body: ChatRequest) -> None:
        self._names = names_of(tokenizer, bool(body.return_tokens_as_token_ids))
        self._logprobs = bool(body.logprobs)
        self._positions = body.prompt_logprobs is not None
        self._reasoning = body.include_reasoning is not False

    def choice(self, index: int, collector: Collector) -> dict[str, Any]:
        return {
            "index": index,
            "message": message_of(collector, self._reasoning),
            "logprobs": self._content(collector.logprobs) if self._logprobs else None,
            "finish_reason": self.finish_reason(collector, collector.finish_reason),
            "stop_reason": collector.stop_reason,
        }

    def top_level(self, collectors: Sequence[Collector]) -> dict[str, Any]:
        if not self._positions:
            return {}
        return {"prompt_logprobs": prompt_positions(collectors[0].prompt_logprobs or [])}

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def prompt_event(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        if not self._positions or index or delta.prompt_logprobs is None:
            return None
        return {"choices": [], "prompt_logprobs": prompt_positions(delta.prompt_logprobs)}

    def text_key(self) -> tuple[bytes, bytes]:
        return b'"delta":{"content":', b"}"

    def finish_reason(self, collector: Collector, reason: str | None) -> str | None:
        return "tool_calls" if reason == "stop" and collector.speaker and collector.speaker.calls else reason

    def deltas(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        return [
            {"delta": fields}
            for event in events
            if (self._reasoning or not isinstance(event, Reasoning)) and (fields := delta_of(event))
        ]

    def delta_logprobs(self, index: int, collector: Collector, delta: TextDelta) -> Any:  # noqa: ARG002
        return self._content(delta.logprobs) if delta.logprobs else None

    def steps(self, collector: Collector, delta: TextDelta) -> list[Step]:
        """What a delta means, for the dialects that are written from it. Log-probabilities go with the first text."""
        logprobs = chat_content(self._names, delta.logprobs) if delta.logprobs else []
        found: list[Step] = []
        if delta.events is None or all(isinstance(event, Text) for event in delta.events):
            found += [Said(delta.text, logprobs)] if delta.text or logprobs else []
        else:
            if logprobs and not any(isinstance(event, Text) for event in delta.events):
                found.append(Said("", logprobs))
            for event in delta.events:
                if isinstance(event, Text):
                    found.append(Said(event.text, logprobs))
                    logprobs = []
                elif isinstance(event, Reasoning) and self._reasoning:
                    found.append(Thought(event.text))
                elif isinstance(event, ToolStart):
                    found.append(CallBegun(event.id, event.name))
                elif isinstance(event, ToolArguments):
                    found.append(CallArguments(event.delta))
        if delta.finish_reason is not None:
            found.append(Ended(self.finish_reason(collector, delta.finish_reason) or "", delta.stop_reason))
        return found

    def _content(self, entries: Positions) -> dict[str, Any]:
        return {"content": chat_content(self._names, entries), "refusal": None}
